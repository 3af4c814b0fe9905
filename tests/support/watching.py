"""Callbacks for tests, and runs that are cut off in the middle."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from polytempo.api import simulate_experiment
from polytempo.report.run import Run
from polytempo.sim.experiment import Experiment, make_experiment
from polytempo.sim.run import run_experiment
from polytempo.track.callback import Callback, Row, RunStart
from polytempo.track.watching import Callbacks

SMALL = {"clients": 4, "updates": 24, "eval_every": 4, "steps": 2, "workers": 1, "engine": "eager"}


class PowerCut(BaseException):
    """Ends a run as a kill does: nobody is asked to close anything."""


class Diary(Callback):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.lines: list[tuple[Any, ...]] = []

    def on_begin(self, start: RunStart) -> None:
        self.lines.append(("begin", len(start.updates), len(start.evaluations)))

    def on_update(self, row: Row) -> None:
        self.lines.append(("update", row["client"], row["time"]))

    def on_evaluation(self, row: Row) -> None:
        self.lines.append(("evaluation", row["updates"], row["accuracy_used"]))

    def on_end(self, run: Run) -> None:
        self.lines.append(("end", run.digest))

    def on_stop(self) -> None:
        self.lines.append(("stop",))


class Cutting(Callback):
    """Cuts the power at an update."""

    def __init__(self, update: int) -> None:
        self.left = update

    def on_update(self, row: Row) -> None:
        self.left -= 1
        if not self.left:
            raise PowerCut


def small(**settings: Any) -> Experiment:
    return make_experiment(**{"strategy": "fedasync", **SMALL, **settings})


def cut_off(directory: Path, callbacks: Sequence[Callback], update: int, checkpoint_seconds: float = 0.0) -> None:
    """A run that is cut off right after an update; by default every event has its checkpoint. Nothing is closed."""
    watching = Callbacks([*callbacks, Cutting(update)])
    with pytest.raises(PowerCut):
        run_experiment(small(), directory, checkpoint_seconds=checkpoint_seconds, watcher=watching)


def gone_on(directory: Path, callbacks: Sequence[Callback]) -> Run:
    """The same run to its end."""
    return simulate_experiment(small(), directory, callbacks=callbacks)
