"""What is found out about events after they were written. It is written with the next ones, in the same transaction."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol


class Statements(Protocol):
    """A transaction that is open. SQL has ``?`` in the place of values."""

    def execute(self, sql: str, values: Sequence[Any] = ..., /) -> Any: ...

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> Any: ...


class Marks:
    """Those of one journal that are not safe yet."""

    def __init__(self) -> None:
        self.void: dict[int, str] = {}
        """Events that the strategy could not take, and why."""
        self.outcomes: dict[int, int] = {}
        """What events came to."""
        self.about: dict[str, Any] = {}
        """What the service is said to be from then on."""

    def write(self, statements: Statements) -> None:
        if self.void:
            reasons = [(reason, number) for number, reason in self.void.items()]
            statements.executemany("UPDATE events SET void = ? WHERE number = ?", reasons)
        if self.outcomes:
            statements.executemany(
                "INSERT INTO outcomes (number, outcome) VALUES (?, ?) "
                "ON CONFLICT (number) DO UPDATE SET outcome = excluded.outcome",
                list(self.outcomes.items()),
            )
        if self.about:
            write_about(statements, self.about)

    def clear(self) -> None:
        self.void.clear()
        self.outcomes.clear()
        self.about.clear()


def write_about(statements: Statements, about: Mapping[str, Any]) -> None:
    statements.executemany(
        "INSERT INTO about (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        [(name, json.dumps(value)) for name, value in about.items()],
    )
