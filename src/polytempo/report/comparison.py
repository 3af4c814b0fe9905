"""Several runs side by side: methods under the same conditions, each with one seed or more."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polytempo.core.errors import UserError
from polytempo.report.facts.contenders import NOT_SETTINGS, Contender, contenders_of
from polytempo.report.frames import Row, frame_of
from polytempo.report.run import Run
from polytempo.report.table import comparison_figures, markdown_table
from polytempo_client.imports import unknown

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor, nn


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Runs in order. Those that differ in nothing but the seed are one method (a contender)."""

    runs: tuple[Run, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "runs", tuple(self.runs))

    @classmethod
    def load(cls, *directories: Path | str) -> "Comparison":
        """All finished runs in or below these directories. A run that lies there twice counts once."""
        runs: list[Run] = []
        for directory in map(Path, directories):
            found = find_runs(directory)
            if not found:
                raise UserError(f"{directory} holds no finished run: expected what polytempo run or compare wrote")
            runs += map(Run.load, found)
        return cls(tuple(distinct(runs)))

    @cached_property
    def contenders(self) -> tuple[Contender, ...]:
        """The methods, in order of first appearance."""
        return tuple(contenders_of(self.runs))

    @property
    def methods(self) -> list[str]:
        """Their labels, as tables and figures show them."""
        return [contender.label for contender in self.contenders]

    def figures(self) -> dict[str, dict[str, Any]]:
        """For each method the means over its seeds that ``polytempo compare --json`` prints."""
        return comparison_figures(self.runs)

    def markdown(self) -> str:
        """The table of results, for documents."""
        return markdown_table(self.runs)

    def run(self, method: str, seed: int | None = None) -> Run:
        """The run of a method with this seed, by default the first one."""
        runs = next((contender.runs for contender in self.contenders if contender.label == method), None)
        if runs is None:
            raise UserError(unknown("method", method, self.methods))
        found = next((run for run in runs if seed in (None, run.seed)), None)
        if found is None:
            raise UserError(f"{method} has no run with seed {seed}: expected one of {[run.seed for run in runs]}")
        return found

    def frame(self) -> Any:
        """One row per evaluation of each run: ``Run.frame`` with the method and the seed in front."""
        return frame_of(self._rows(Run.evaluation_rows))

    def updates_frame(self) -> Any:
        """One row per update of each run: ``Run.updates_frame`` with the method and the seed in front."""
        return frame_of(self._rows(Run.update_rows))

    def clients_frame(self) -> Any:
        """One row per client of each run: ``Run.clients_frame`` with the method and the seed in front."""
        return frame_of(self._rows(Run.client_rows))

    def model(
        self, method: str, client: int, which: str = "used", seed: int | None = None
    ) -> "nn.Module | dict[str, Tensor]":
        """The model of a client in a run of this method, as ``Run.model``."""
        return self.run(method, seed).model(client, which)

    def export(self, directory: Path | str, which: str = "used") -> Path:
        """Export the models of every run into a directory of its own below this one, as ``Run.export``."""
        for contender in self.contenders:
            for run in contender.runs:
                run.export(Path(directory) / f"{contender.name}-seed{run.seed}", which)
        return Path(directory)

    def kinds(self) -> list[str]:
        """The names of the figures that ``plot`` draws."""
        from polytempo.report import figures  # here, because matplotlib takes a while to import

        return figures.kinds(self.runs)

    def plot(self, path: Path | str | None = None, *, kind: str = "accuracy-time", width: str = "page") -> "Figure":
        """A figure of the report by name, as ``Run.plot``."""
        from polytempo.report import figures

        return figures.plot(self.runs, kind, path, width)

    def save_figures(self, directory: Path | str, form: str = "pdf", width: str = "single") -> list[Path]:
        """Save every figure of the report as a file of its own (``pdf``, ``svg`` or ``png``); their paths."""
        from polytempo.report import figures

        return figures.save_figures(self.runs, Path(directory), form, width)

    def report(self, path: Path | str, title: str | None = None) -> Path:
        """Write the report on all runs, one HTML file."""
        from polytempo.report.page import write_report  # here, because matplotlib takes a while to import

        return write_report(self.runs, Path(path), title or " · ".join(self.methods))

    def _rows(self, rows_of: Callable[[Run], Sequence[Row]]) -> list[Row]:
        return [
            {"method": contender.label, "seed": run.seed, **row}
            for contender in self.contenders
            for run in contender.runs
            for row in rows_of(run)
        ]

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)

    def _repr_html_(self) -> str:
        """As the value of a notebook's cell."""
        from polytempo.report.notebook import runs_html

        return runs_html(self.runs)

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(self.methods)}: {len(self)} runs>"


def distinct(runs: Sequence[Run]) -> list[Run]:
    """Each run once, also where it lies in two directories."""
    found: dict[tuple[str, int, str], Run] = {}
    for run in runs:
        settings = {name: value for name, value in run.config.items() if name not in NOT_SETTINGS}
        found.setdefault((run.strategy, run.seed, json.dumps(settings, sort_keys=True, default=str)), run)
    return list(found.values())


def find_runs(directory: Path) -> list[Path]:
    """The directories of finished runs at or below a directory."""
    if (directory / "result.json").exists():
        return [directory]
    return sorted(path.parent for path in directory.glob("**/result.json"))
