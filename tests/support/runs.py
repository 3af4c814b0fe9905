"""Runs of which only what a test is about is known."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from polytempo.report.run import Row, Run
from polytempo.sim.records.history import History
from polytempo.sim.records.used import UsedRows
from polytempo.sim.result import FIGURES, Result


def result_of(**figures: Any) -> Result:
    """A result with these figures and no others."""
    return Result(**{**dict.fromkeys(FIGURES), **figures})


def made_run(
    config: Row,
    figures: Mapping[str, Any],
    evaluations: Sequence[Row] = (),
    updates: Sequence[Row] = (),
    marks: Sequence[Row] = (),
    splits: Sequence[Row] = (),
    regroupings: Sequence[Row] = (),
    similarity: np.ndarray | None = None,
    used: UsedRows | None = None,
    **more: Sequence[Row],
) -> Run:
    """A run with these rows; ``more`` are its other logs, by their names in ``History``."""
    logs = {"evaluations": evaluations, "updates": updates, "marks": marks, **more}
    history = History(**{name: list(rows) for name, rows in logs.items()})  # type: ignore[arg-type]
    return Run(config, result_of(**figures), history, splits, regroupings, similarity, used)


def used_rows(clients: Sequence[Sequence[float]], checksums: Sequence[int] | None = None) -> UsedRows:
    """What the used models do on test rows, given for each client: zeros and ones where it is right or wrong, else
    losses. The test rows are the same in all runs that are made so."""
    values = [np.array(one, bool if set(one) <= {0, 1} else np.float32) for one in clients]
    return UsedRows.of(values, range(len(clients)) if checksums is None else checksums)
