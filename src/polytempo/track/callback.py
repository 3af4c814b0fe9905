"""A callback watches a run: it is told of every update and every evaluation, and changes nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polytempo.core.errors import UserError
from polytempo.report.run import Run

Row = Mapping[str, Any]


@dataclass(frozen=True)
class RunStart:
    """What is known when a run begins, or goes on from a checkpoint."""

    config: Row
    """Every setting, as in config.json."""
    directory: Path | None
    """Where the run is kept (``out``). None: in memory only."""
    evaluations: Sequence[Row] = ()
    """Evaluations up to the checkpoint that the run goes on from. Empty: it begins anew."""
    updates: Sequence[Row] = ()
    """Updates up to that checkpoint."""

    @property
    def label(self) -> str:
        """A short name of the run: strategy and seed."""
        return f"{self.config['strategy']}-seed{self.config['seed']}"


class Callback:
    """Override what you want to be told of. Rows are copies: a callback cannot change the run. They hold what
    updates.jsonl and evaluations.jsonl of the run directory do, figures per client as arrays."""

    def on_begin(self, start: RunStart) -> None:
        """Before the first event. A run that goes on is told again of what came after its last checkpoint."""

    def on_update(self, row: Row) -> None:
        """An update has arrived."""

    def on_evaluation(self, row: Row) -> None:
        """Everybody was evaluated, the first time before any update."""

    def on_end(self, run: Run) -> None:
        """The run is finished, and in its directory if it has one."""

    def on_stop(self) -> None:
        """The run stops before its end, at Ctrl-C or an error. Close what is open: it may go on in another process."""


class CallbackError(UserError):
    """A callback has raised."""
