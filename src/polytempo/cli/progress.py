"""Live progress in the terminal: updates, rate, time left, virtual time, accuracy."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

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
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[standing]}"),
    )
    shown = not quiet and console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not shown) as bar:
        yield ProgressBar(bar)
