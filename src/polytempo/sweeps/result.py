"""What a sweep found: its trials with their scores, the best by validation rows, and that one's test score."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from polytempo.learn.metrics import Scale
from polytempo.report.facts.numbers import counted
from polytempo.report.facts.scales import common_scale
from polytempo.report.facts.significance import t_interval
from polytempo.report.frames import frame_of
from polytempo.report.run import Run
from polytempo.sweeps.space import Assigned, as_words, shown_name, value_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VALIDATION, TEST = "accuracy_validation", "accuracy_used"


@dataclass(frozen=True)
class Scores:
    """One figure over seeds."""

    mean: float
    deviation: float
    """Standard deviation between seeds; NaN with one."""
    low: float
    """The 95 % interval of the mean, by Student's t, of shares cut off at 0 and 1; NaN with one seed."""
    high: float
    seeds: int

    @classmethod
    def of(cls, runs: Sequence[Run], figure: str) -> "Scores":
        values = np.array([run.figure(figure) for run in runs])
        values = values[~np.isnan(values)]
        mean = float(values.mean()) if len(values) else math.nan
        deviation = float(values.std(ddof=1)) if len(values) > 1 else math.nan
        low, high = t_interval(values)
        if common_scale(runs).share:  # what lies beyond cannot be
            low, high = np.clip((low, high), 0, 1).tolist()
        return cls(mean, deviation, low, high, len(values))

    def figures(self) -> dict[str, float | int | None]:
        """For scripts: null for what is not known."""
        return {name: None if math.isnan(value) else value for name, value in vars(self).items()}


@dataclass(frozen=True, eq=False)
class Trial:
    """One choice of values, and its runs with all seeds."""

    assigned: Assigned
    """Values by the names of settings and, as ``parameters.NAME``, parameters."""
    runs: tuple[Run, ...] = ()
    failure: str = ""
    """Why a run did not end: its training diverged. Such a trial has no score."""

    @property
    def validation(self) -> Scores:
        """Of used models on validation rows."""
        return Scores.of(() if self.failure else self.runs, VALIDATION)

    @property
    def test(self) -> Scores:
        """Of used models on test rows. To choose by it would make it worthless."""
        return Scores.of(() if self.failure else self.runs, TEST)

    @property
    def words(self) -> str:
        return as_words(self.assigned)


@dataclass(frozen=True, eq=False, repr=False)
class Sweep:
    """All trials, in the order of the grid or of the search."""

    strategy: str
    names: tuple[str, ...]
    """What was varied."""
    seeds: tuple[int, ...]
    trials: tuple[Trial, ...]

    @cached_property
    def best(self) -> Trial | None:
        """The trial with the best mean on validation rows; None where there are no validation rows."""
        scored = [one for one in self.trials if not math.isnan(one.validation.mean)]
        sign = 1 if self.scale.higher_is_better else -1
        return max(scored, key=lambda one: sign * one.validation.mean, default=None)

    @property
    def scale(self) -> Scale:
        """The metric of its runs."""
        return common_scale(self.runs)

    @property
    def runs(self) -> list[Run]:
        """The runs of all trials."""
        return [run for trial in self.trials for run in trial.runs]

    def figures(self) -> dict[str, Any]:
        """For scripts: every trial with its validation score, and the best one with its test score."""
        best = self.best
        return {
            "strategy": self.strategy,
            "seeds": list(self.seeds),
            "trials": [
                {
                    "settings": _plain(one.assigned),
                    "validation": one.validation.figures(),
                    "failure": one.failure or None,
                }
                for one in self.trials
            ],
            "best": None if best is None else {"settings": _plain(best.assigned), "test": best.test.figures()},
        }

    def rows(self) -> list[dict[str, Any]]:
        """A row per trial: its values, and over seeds the score on validation rows. Only the best has its score on test
        rows, unless none is chosen."""
        best, measured = self.best, ("mean", "deviation", "low", "high", "seeds")
        found = []
        for one in self.trials:
            scores = (one.test if best is None else one.validation).figures()
            values = {shown_name(name): value_text(one.assigned[name]) for name in self.names}
            test = one.test.figures()["mean"] if best is None or one is best else None
            known = {name: scores[name] for name in measured}
            found.append({**values, **known, "best": one is best, "test": test})
        return found

    def frame(self) -> Any:
        """These rows as a pandas DataFrame where pandas is installed, otherwise as a dict of numpy arrays."""
        return frame_of([{**row, **_plain(one.assigned)} for row, one in zip(self.rows(), self.trials, strict=True)])

    def _repr_html_(self) -> str:
        """As the value of a notebook's cell."""
        from polytempo.sweeps.table import sweep_html

        return sweep_html(self)

    def plot(self, path: Path | str | None = None) -> "Figure":
        """A heat map of the metric on validation rows over the first two names; of a search, one panel per name. Saved
        if a path is given."""
        from polytempo.report.drawing import canvas  # matplotlib is slow to load
        from polytempo.sweeps.plot import sweep_figure

        figure = sweep_figure(self)
        if path is not None:
            canvas.save(figure, Path(path))
        return figure

    def __repr__(self) -> str:
        return f"<Sweep {self.summary()}>"

    def summary(self) -> str:
        """One readable line: what was chosen, and how good it is on test rows."""
        tried = f"{self.strategy}: {counted(len(self.trials), 'trial')}, {counted(len(self.seeds), 'seed')}"
        best = self.best
        if best is None:
            return f"{tried}; none is chosen without validation rows"
        return f"{tried}; best by validation: {best.words} (test {self.scale.shown(best.test.mean)})"


def _plain(assigned: Mapping[str, Any]) -> dict[str, Any]:
    return {shown_name(name): value for name, value in assigned.items()}
