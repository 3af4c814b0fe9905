"""What is found out about events after they were written. It is written with the next ones, in the same transaction."""

import json
import sqlite3
from collections.abc import Mapping
from typing import Any


class Marks:
    """Those of one journal that are not on disk yet."""

    def __init__(self) -> None:
        self.void: dict[int, str] = {}
        """Events that the strategy could not take, and why."""
        self.outcomes: dict[int, int] = {}
        """What events came to."""
        self.about: dict[str, Any] = {}
        """What the service is said to be from then on."""

    def write(self, database: sqlite3.Connection) -> None:
        reasons = [(reason, number) for number, reason in self.void.items()]
        database.executemany("UPDATE events SET void = ? WHERE number = ?", reasons)
        database.executemany("INSERT OR REPLACE INTO outcomes VALUES (?, ?)", list(self.outcomes.items()))
        write_about(database, self.about)

    def clear(self) -> None:
        self.void.clear()
        self.outcomes.clear()
        self.about.clear()


def write_about(database: sqlite3.Connection, about: Mapping[str, Any]) -> None:
    rows = [(name, json.dumps(value)) for name, value in about.items()]
    database.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", rows)
