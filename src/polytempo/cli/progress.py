"""Live progress in the terminal: of one run its updates, rate, time left, virtual time and accuracy; of several that go
on side by side, how many are finished."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from polytempo.sim.run import Progress as Standing


class ProgressBar:
    """One line for the run that is going on. Where nobody looks (no terminal, or --quiet) it shows nothing."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=1.0, standing="")
        self._first: Standing | None = None  # a continued run begins in the middle

    def begin(self, label: str) -> None:
        preparing = "preparing; the first run on a machine compiles for a quarter of a minute"
        self._bar.reset(self._task, description=label, total=1.0, standing=preparing)
        self._first = None

    def show(self, standing: Standing) -> None:
        self._first = self._first or standing
        elapsed = self._bar.tasks[0].elapsed or 1e-3
        self._bar.update(
            self._task,
            completed=standing.share,
            standing=f"{standing.updates:,} updates, {(standing.updates - self._first.updates) / elapsed:,.0f}/s, "
            f"virtual {standing.time:,.0f} s, {standing.metric} {standing.accuracy:.3f}",
        )


@contextmanager
def progress_bar(quiet: bool) -> Iterator[ProgressBar]:
    """For one run after the other."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[standing]}"),
    )
    with _bar(quiet, *columns) as bar:
        yield ProgressBar(bar)


@contextmanager
def runs_bar(quiet: bool) -> Iterator[Callable[[int, int, str], None]]:
    """For runs side by side: what is to be told how many are finished, of how many, and what the last one was."""
    columns = (TextColumn("runs"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeRemainingColumn())
    with _bar(quiet, *columns, TextColumn("{task.description}")) as bar:
        task = bar.add_task("")
        yield lambda done, total, last: bar.update(task, completed=done, total=total, description=last)


def _bar(quiet: bool, *columns: ProgressColumn) -> Progress:
    """Nothing is shown where nobody looks."""
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)
