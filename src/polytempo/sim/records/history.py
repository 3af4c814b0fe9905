"""What a run records: one row per evaluation, per update, per other thing worth a mark on the timeline, per state of
the collaboration graph, per moment at which models travelled, per sketch of the clients' own models, and per exchange
of a client's model for the one that it is served."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from polytempo.core.errors import UserError
from polytempo.core.events import Update
from polytempo.core.orders import Due
from polytempo.sim.training import Training
from polytempo_client.disk.files import write_bytes

FILES = ("evaluations", "updates", "marks", "graphs", "traffic", "sketches", "exchanges")
OPTIONAL = ("graphs", "traffic", "sketches", "exchanges")  # files that are not there without rows
DECIMALS = 6  # of a weight in a graph
UNWRITTEN = 1000
"""Updates that wait to be written."""

Row = dict[str, Any]


@dataclass
class History:
    """Rows in memory and, where the run has a directory, in files that can be cut back to a checkpoint. A figure per
    client is an array in memory (100,000 clients are 100,000 numbers) and a list with nulls in a file."""

    evaluations: list[Row] = field(default_factory=list)
    updates: list[Row] = field(default_factory=list)
    marks: list[Row] = field(default_factory=list)
    graphs: list[Row] = field(default_factory=list)
    traffic: list[Row] = field(default_factory=list)
    sketches: list[Row] = field(default_factory=list)
    exchanges: list[Row] = field(default_factory=list)
    directory: Path | None = None
    _written: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FILES, 0))

    def mark(
        self,
        time: float,
        kind: str,
        client: int,
        awaited: Due | None = None,
        **more: float | str,
    ) -> None:
        """Something happened to a client; with the arrival group that will wait for it in vain, if any does, and with
        more of what is known: the time at which the strategy ordered it, why the client asked."""
        self.marks.append(
            {"time": time, "kind": kind, "client": client, **({} if awaited is None else awaited.row()), **more}
        )

    def write_full(self) -> None:
        """Write what is new once it is much."""
        if self.directory is not None and len(self.updates) - self._written["updates"] >= UNWRITTEN:
            self.flush()

    def flush(self) -> dict[str, int]:
        """Write what is new; the number of rows now in each file."""
        if self.directory is not None:
            for name in FILES:
                rows: list[Row] = getattr(self, name)
                if name in OPTIONAL and not rows:
                    continue
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
            self._written[name] = wanted
            if name in OPTIONAL and not wanted:
                path.unlink(missing_ok=True)
                continue
            if wanted:  # a kill here must leave the rows that are there
                write_bytes(path, "".join(line + "\n" for line in lines).encode(), durable=False)
            else:
                path.write_text("")


def update_row(now: float, update: Update, training: Training, staleness: int) -> Row:
    """One update that has just arrived; with the time at which its training began, where the client held its model
    first, and with its arrival group, where the strategy plans arrivals."""
    due = training.flight.order.due
    return {
        "time": now,
        "client": update.client,
        "began": training.flight.dispatched,
        **({"asked": training.begins} if training.looks else {}),
        "steps": update.steps,
        "staleness": staleness,
        "version": update.version,
        "samples": update.samples,
        **({} if due is None else due.row()),
    }


def graph_row(now: float, updates: int, graph: np.ndarray) -> Row:
    """Who learns from whom, without zeros: for each client that has a row in the graph, by its number as text, whom it
    learns from and with which weights."""
    rounded = np.nan_to_num(np.round(graph.astype(np.float64), DECIMALS))
    rows = {}
    for client in np.flatnonzero(~np.isnan(graph).all(axis=1)).tolist():
        neighbours = np.flatnonzero(rounded[client])
        rows[str(client)] = {"neighbours": neighbours, "weights": rounded[client, neighbours]}
    return {"time": now, "updates": updates, "rows": rows}


def _listed(numbers: np.ndarray) -> list[Any]:
    if numbers.ndim > 1:
        return [_listed(row) for row in numbers]
    return [None if math.isnan(number) else number for number in numbers.tolist()]


def _row(line: str) -> Row:
    row: Row = json.loads(line, object_hook=_with_arrays)
    return row


def _with_arrays(row: Row) -> Row:
    return {name: np.array(value, np.float64) if isinstance(value, list) else value for name, value in row.items()}
