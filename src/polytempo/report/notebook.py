"""Runs in a notebook: what a run or a comparison looks like as the value of a cell, and one line of live progress."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any, Literal

from polytempo.report.differences import meaning_of_bold
from polytempo.report.facts.contenders import contenders_of
from polytempo.report.facts.numbers import NOTHING
from polytempo.report.run import Run
from polytempo.report.table import comparison_rows
from polytempo.sim.run import Progress

Show = Callable[[Progress], None]
RunsReport = Callable[[int, int, str], None]
"""(runs finished, runs in all, what the last one was)"""

CSS = """
.polytempo { --ink: var(--jp-content-font-color1, #24292f); --grid: var(--jp-border-color2, #dfe3e8);
  color: var(--ink); max-width: 900px; }
.polytempo p { margin: 0 0 6px; }
.polytempo .scroll { overflow-x: auto; }
.polytempo table { border-collapse: collapse; font-size: 13px; margin: 0 0 8px; }
.polytempo th, .polytempo td { padding: 3px 10px 3px 0; text-align: left; border-bottom: 1px solid var(--grid);
  white-space: nowrap; vertical-align: bottom; background: none; }
.polytempo thead th { white-space: normal; }
.polytempo td { text-align: right; font-variant-numeric: tabular-nums; }
.polytempo .dot { display: inline-block; width: .7em; height: .7em; border-radius: 50%; margin-right: .5em; }
.polytempo svg { display: block; width: 100%; max-width: 480px; height: auto; }
"""
"""Colours follow the notebook's theme where it has one."""


def run_html(run: Run) -> str:
    """A run: one line, its figures, and accuracy against virtual time."""
    cells = comparison_rows([run])[0].cells
    rows = [(title, cell.text) for title, cell in cells.items() if cell.text != NOTHING]
    half = -(-len(rows) // 2)
    beside = [[*left, *right] for left, right in zip(rows[:half], [*rows[half:], ("", "")], strict=False)]
    body = "".join(
        f"<tr><th>{escape(a)}</th><td>{escape(b)}</td><th>{escape(c)}</th><td>{escape(d)}</td></tr>"
        for a, b, c, d in beside
    )
    return _of_runs(run.summary(), f"<table><tbody>{body}</tbody></table>", [run])


def runs_html(runs: Sequence[Run]) -> str:
    """Several runs: a row of figures per contender, the best of a column bold, and accuracy against virtual time."""
    from polytempo.report.sections.markup import bold, html_table, named  # here, because matplotlib takes a while

    if not runs:
        return "<p>no runs</p>"
    rows, contenders = comparison_rows(runs), contenders_of(runs)
    body = [
        [named(contender), *(bold(cell.text) if cell.best else escape(cell.text) for cell in row.cells.values())]
        for contender, row in zip(contenders, rows, strict=True)
    ]
    most = max(len(contender.runs) for contender in contenders)
    told = f"{len(contenders)} methods, " + ("one seed" if most == 1 else f"means over up to {most} seeds")
    meaning = f" {meaning_of_bold(contenders)}" if len(contenders) > 1 else ""
    return _of_runs(f"{told}.{meaning}", html_table(["method", *rows[0].cells], body), runs)


def notebook_html(told: str, table: str, figure: str) -> str:
    """What the value of a cell looks like: a sentence, a table and a figure."""
    return f'<div class="polytempo"><style>{CSS}</style><p>{escape(told)}</p>{table}{figure}</div>'


def _of_runs(told: str, table: str, runs: Sequence[Run]) -> str:
    from polytempo.report.drawing.canvas import inline_svg
    from polytempo.report.drawing.figures import accuracy_over_time

    name = f"run-{str(runs[0].digest)[:12]}-{len(runs)}"  # ids are those of the whole notebook
    return notebook_html(told, table, inline_svg(accuracy_over_time(runs), name))


@contextmanager
def live_line() -> Iterator[Callable[[str], None] | None]:
    """In a notebook, one line that shows the HTML it was given last and is empty at the end. Elsewhere None."""
    if not in_notebook():
        yield None
        return
    from IPython.display import HTML, display

    line: Any = display(HTML(""), display_id=True)
    try:
        yield lambda html: line.update(HTML(html))
    finally:
        line.update(HTML(""))


@contextmanager
def live_progress() -> Iterator[Callable[[str], Show | None]]:
    """What shows, for a run with this label, how far it is: in a notebook one line for all runs, elsewhere nothing."""
    with live_line() as write:

        def begin(label: str) -> Show | None:
            if write is None:
                return None
            preparing = "preparing; the first run on a machine compiles for a quarter of a minute"
            write(f"<div>{escape(label)}: {preparing}</div>")
            return lambda standing: write(_standing(label, standing))

        yield begin


@contextmanager
def runs_line(progress: RunsReport | Literal[False] | None, label: str) -> Iterator[RunsReport | None]:
    """What is told how many runs of several are finished: what was given or, in a notebook, one line."""
    if progress is not None:
        yield progress or None
        return
    with live_line() as write:
        if write is None:
            yield None
        else:
            told = write
            yield lambda done, total, last: told(bar(label, done / total, f"{done} of {total} runs, {last}"))


def in_notebook() -> bool:
    """Does this code run in a kernel, whose outputs are shown as HTML?"""
    if "IPython" not in sys.modules:
        return False
    shell: Any = sys.modules["IPython"].get_ipython()
    return getattr(shell, "kernel", None) is not None


def bar(label: str, share: float, words: str) -> str:
    """One line of progress as HTML."""
    return f'<div>{escape(label)} <progress value="{min(share, 1.0):.4f}"></progress> {escape(words)}</div>'


def _standing(label: str, standing: Progress) -> str:
    return bar(
        label,
        standing.share,
        f"{min(standing.share, 1.0):.0%}, {standing.updates:,} updates, virtual {standing.time:,.0f} s, "
        f"{standing.metric} {standing.accuracy:.3f}",
    )
