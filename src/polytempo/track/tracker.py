"""What all trackers share: which figures they log, at which step, and how a run that goes on logs nothing twice."""

import math
import os
from collections import Counter
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from polytempo.core.errors import UserError
from polytempo.learn.metrics import scale_of
from polytempo.report.run import Run
from polytempo.track.callback import Callback, Row, RunStart

Logged = Counter[tuple[str, int]]
"""Name of a figure and step -> how often it is in the log."""


class Tracker(Callback):
    """Logs the figures of every evaluation with the number of updates as its step. After an interruption the log is
    asked what it has: what is missing is logged, and nothing is logged twice."""

    metric = "accuracy"
    """What figures of the metric are called in the log."""

    def on_begin(self, start: RunStart) -> None:
        self.metric = scale_of(start.config).name
        self._open(start)
        for row in start.evaluations:
            self.on_evaluation(row)

    def on_evaluation(self, row: Row) -> None:
        self._log(int(row["updates"]), figures_of(row, self.metric))

    def on_end(self, run: Run) -> None:
        self._close(run)

    def on_stop(self) -> None:
        self._close(None)

    def _open(self, start: RunStart) -> None:
        """Begin a log, or go on with that of the run's directory."""
        raise NotImplementedError

    def _log(self, step: int, figures: Mapping[str, float]) -> None:
        raise NotImplementedError

    def _close(self, run: Run | None) -> None:
        """Finish the log of a finished run, or leave that of a stopped one (None) to go on with later."""
        raise NotImplementedError


def figures_of(row: Row, metric: str = "accuracy") -> dict[str, float]:
    """The numbers of an evaluation; of those per cluster or device type, each under a name of its own. Figures of the
    metric have its name."""
    found: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            found |= {f"{name}/{part}": number for part, number in figures_of(value).items()}
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            found["virtual_time" if name == "time" else name] = float(value)
    found.pop("updates", None)  # the step
    return {name.replace("accuracy", metric): value for name, value in found.items()}


def final_figures(run: Run) -> dict[str, float]:
    """The numbers of a result that no evaluation has."""
    metric = run.scale.name
    evaluated = figures_of(run.evaluations[-1], metric) if run.evaluations else {}
    return {name: value for name, value in figures_of(dict(run.result), metric).items() if name not in evaluated}


def not_logged(logged: Logged, step: int, figures: Mapping[str, float]) -> dict[str, float]:
    """The figures that the log does not have at this step. Those that it has are struck off."""
    missing = {}
    for name, value in figures.items():
        if logged[name, step] > 0:
            logged[name, step] -= 1
        else:
            missing[name] = value
    return missing


def settings_of(config: Row) -> dict[str, Any]:
    """The settings of a run under flat names (``parameters.mixing``), without those that are unset."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{part}": one for part, one in value.items()}
        else:
            flat[name] = value
    return {name: value for name, value in flat.items() if value not in (None, "", [])}


def extra(module: str, name: str) -> Any:
    """The module of a package that an extra of Polytempo installs. What it reports about its own use is turned off."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    try:
        return import_module(module)
    except ImportError as error:
        raise UserError(
            f"Tracking with {name} needs a package that is not installed ({error}). "
            f"Install it: pip install 'polytempo[{name}]'."
        ) from None
