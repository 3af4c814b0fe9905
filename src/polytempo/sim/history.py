"""What a run records: one row per evaluation, per update, and per other thing worth a mark on the timeline."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from polytempo.core.errors import UserError
from polytempo.core.events import Update
from polytempo.core.orders import Due
from polytempo.sim.flight import Flight

FILES = ("evaluations", "updates", "marks")

Row = dict[str, Any]


@dataclass
class History:
    """Rows in memory and, where the run has a directory, in files that can be cut back to a checkpoint. A figure per
    client is an array in memory (100,000 clients are 100,000 numbers) and a list with nulls in a file."""

    evaluations: list[Row] = field(default_factory=list)
    updates: list[Row] = field(default_factory=list)
    marks: list[Row] = field(default_factory=list)
    directory: Path | None = None
    _written: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FILES, 0))

    def mark(self, time: float, kind: str, client: int, awaited: Due | None = None) -> None:
        """Something happened to a client; with the arrival group that will wait for it in vain, if any does."""
        self.marks.append({"time": time, "kind": kind, "client": client, **({} if awaited is None else awaited.row())})

    def flush(self) -> dict[str, int]:
        """Write what is new; the number of rows now in each file."""
        if self.directory is not None:
            for name in FILES:
                rows: list[Row] = getattr(self, name)
                with (self.directory / f"{name}.jsonl").open("a") as file:
                    file.writelines(json.dumps(row, default=_listed) + "\n" for row in rows[self._written[name] :])
                self._written[name] = len(rows)
        return dict(self._written)

    def open(self, directory: Path, rows: dict[str, int] | None) -> None:
        """Go on in a directory as it was when its files had that many rows; None: from nothing, emptying the files."""
        self.directory = directory
        for name in FILES:
            path = directory / f"{name}.jsonl"
            wanted = 0 if rows is None else rows[name]
            lines = path.read_text().splitlines()[:wanted] if wanted else []
            if len(lines) < wanted:
                raise UserError(f"{path} has lost rows since its checkpoint ({len(lines)} of {wanted}). Begin anew.")
            getattr(self, name).extend(map(_row, lines))
            temporary = path.with_name(path.name + ".tmp")  # a kill here must leave the rows that are there
            temporary.write_text("".join(line + "\n" for line in lines))
            temporary.replace(path)
            self._written[name] = wanted


def update_row(now: float, update: Update, flight: Flight, staleness: int) -> Row:
    """One update that has just arrived; with its arrival group, where the strategy plans arrivals."""
    due = flight.order.due
    return {
        "time": now,
        "client": update.client,
        "began": flight.dispatched,
        "steps": update.steps,
        "staleness": staleness,
        "version": update.version,
        "samples": update.samples,
        **({} if due is None else due.row()),
    }


def _listed(numbers: np.ndarray) -> list[float | None]:
    return [None if math.isnan(number) else number for number in numbers.tolist()]


def _row(line: str) -> Row:
    row: Row = json.loads(line)
    return {name: np.array(value, np.float64) if isinstance(value, list) else value for name, value in row.items()}
