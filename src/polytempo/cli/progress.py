"""Live progress in the terminal: updates, rate, time left, virtual time, accuracy."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from polytempo.sim.run import Progress as Standing


class ProgressBar:
    """One line for the run that is going on. Where nobody looks (no terminal, or --quiet) it shows nothing."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=None, rate="", standing="")

    def begin(self, label: str) -> None:
        self._bar.reset(self._task, description=label, total=None, rate="", standing="")

    def show(self, standing: Standing) -> None:
        task = self._bar.tasks[0]
        self._bar.update(
            self._task,
            completed=standing.updates,
            total=standing.planned,
            rate=f"{standing.updates / max(task.elapsed or 0, 1e-3):,.0f} updates/s",
            standing=f"virtual {standing.time:,.0f} s, accuracy {standing.accuracy:.3f}",
        )


@contextmanager
def progress_bar(quiet: bool) -> Iterator[ProgressBar]:
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[standing]}"),
    )
    shown = not quiet and console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not shown) as bar:
        yield ProgressBar(bar)
