"""Runs in a notebook: what a run or a comparison looks like as the value of a cell, and one line of live progress."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

from polytempo.report.facts.contenders import contenders_of
from polytempo.report.facts.numbers import NOTHING
from polytempo.report.run import Run
from polytempo.report.table import comparison_rows
from polytempo.sim.run import Progress

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
    return _whole(run.summary(), f"<table><tbody>{body}</tbody></table>", [run])


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
    return _whole(told, html_table(["method", *rows[0].cells], body), runs)


def _whole(told: str, table: str, runs: Sequence[Run]) -> str:
    from polytempo.report.drawing.canvas import inline_svg
    from polytempo.report.drawing.figures import accuracy_over_time

    name = f"run-{str(runs[0].digest)[:12]}-{len(runs)}"  # ids are those of the whole notebook
    figure = inline_svg(accuracy_over_time(runs), name)
    return f'<div class="polytempo"><style>{CSS}</style><p>{escape(told)}</p>{table}{figure}</div>'


@contextmanager
def live_progress(label: str) -> Iterator[Callable[[Progress], None] | None]:
    """In a notebook, what shows how far a run is, in one line that is gone at the end. Elsewhere None."""
    if not in_notebook():
        yield None
        return
    from IPython.display import HTML, display

    line: Any = display(HTML(_line(label, None)), display_id=True)
    try:
        yield lambda standing: line.update(HTML(_line(label, standing)))
    finally:
        line.update(HTML(""))


def in_notebook() -> bool:
    """Does this code run in a kernel, whose outputs are shown as HTML?"""
    if "IPython" not in sys.modules:
        return False
    shell: Any = sys.modules["IPython"].get_ipython()
    return getattr(shell, "kernel", None) is not None


def _line(label: str, standing: Progress | None) -> str:
    if standing is None:
        return f"<div>{escape(label)}: preparing; the first run on a machine compiles for a quarter of a minute</div>"
    share = min(standing.share, 1.0)
    return (
        f'<div>{escape(label)} <progress value="{share:.4f}"></progress> {share:.0%}, {standing.updates:,} updates, '
        f"virtual {standing.time:,.0f} s, accuracy {standing.accuracy:.3f}</div>"
    )
