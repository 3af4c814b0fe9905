"""A sweep as a table, for the terminal, a notebook or a spreadsheet, and in words what was chosen."""

import math
from collections.abc import Sequence
from html import escape

import rich.box
from rich.table import Table
from rich.text import Text

from polytempo.learn.metrics import Scale
from polytempo.report.csv_table import csv_text
from polytempo.report.facts.numbers import NOTHING, counted
from polytempo.report.notebook import notebook_html
from polytempo.report.table import full_width
from polytempo.sweeps.result import Scores, Sweep, Trial
from polytempo.sweeps.space import shown_name, value_text


def sweep_table(sweep: Sweep, width: int | None = None) -> Table:
    """For the terminal: a row per trial with mean, deviation and 95 % interval over seeds, the chosen one bold. The
    scores are those on validation rows; without these rows, those on test rows. Within a width, many names share one
    column."""
    values = [[value_text(one.assigned[name]) for name in sweep.names] for one in sweep.trials]
    table = _table(sweep, values, _titles(sweep))
    if width is None or full_width(table) <= width:
        return table
    return _table(sweep, [[one.words] for one in sweep.trials], ["trial"])


def _table(sweep: Sweep, named: Sequence[Sequence[str]], titles: Sequence[str]) -> Table:
    """The cells that name each trial, and its scores."""
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for title in titles:
        table.add_column(title, justify="right" if len(titles) > 1 else "left", overflow="fold")
    for title in _measures(sweep):
        table.add_column(title, justify="right", no_wrap=True)
    for trial, names in zip(sweep.trials, named, strict=True):
        style = "bold" if trial is sweep.best else ""
        table.add_row(*(Text(cell, style=style) for cell in [*names, *_score_cells(sweep, trial)]))
    return table


def sweep_html(sweep: Sweep) -> str:
    """For a notebook: what was chosen, the table, and the figure."""
    from polytempo.report.drawing.canvas import inline_svg  # here, because matplotlib takes a while to import
    from polytempo.report.sections.markup import bold, html_table

    body = [
        [(bold if trial is sweep.best else escape)(cell) for cell in _cells(sweep, trial)] for trial in sweep.trials
    ]
    table = html_table([*_titles(sweep), *_measures(sweep)], body)
    name = f"sweep-{str(sweep.runs[0].digest)[:12]}-{len(sweep.runs)}"
    return notebook_html(" ".join(remarks(sweep)), table, inline_svg(sweep.plot(), name))


def sweep_csv(sweep: Sweep) -> str:
    """The rows of ``Sweep.frame`` as CSV."""
    rows = sweep.rows()
    return csv_text(list(rows[0]), (list(row.values()) for row in rows))


def remarks(sweep: Sweep) -> list[str]:
    """What was chosen, and what the figures cannot say."""
    best = sweep.best
    if best is None:
        return [
            "Nothing is chosen: there are no validation rows. The best of these scores would be chosen by the test "
            "rows, and look better than it is. Give a --validation-share above 0."
        ]
    test, scale = best.test, sweep.scale
    spread = (
        "" if math.isnan(test.low) else f" ± {scale.number(test.deviation)}, 95 % interval {_interval(test, scale)}"
    )
    percent = " %" if scale.share else ""
    told = [
        f"Best by validation: {best.words}. Its test {scale.name}: {scale.number(test.mean)}{spread}{percent}, "
        f"{counted(test.seeds, 'seed')}. Test rows had no part in the choice."
    ]
    if len(sweep.seeds) == 1:
        told.append("One seed: another may choose another trial. Take more (--seeds).")
    return told


def _titles(sweep: Sweep) -> list[str]:
    return [shown_name(name).replace("_", " ") for name in sweep.names]


def _measures(sweep: Sweep) -> list[str]:
    return [
        f"{'test' if sweep.best is None else 'validation'} {sweep.scale.unit}",
        "deviation",
        "95 % interval",
        "seeds",
    ]


def _cells(sweep: Sweep, trial: Trial) -> list[str]:
    return [*(value_text(trial.assigned[name]) for name in sweep.names), *_score_cells(sweep, trial)]


def _score_cells(sweep: Sweep, trial: Trial) -> list[str]:
    if trial.failure:
        return ["diverged", NOTHING, NOTHING, "0"]
    scores, scale = trial.test if sweep.best is None else trial.validation, sweep.scale
    interval = NOTHING if math.isnan(scores.low) else _interval(scores, scale)
    deviation = NOTHING if math.isnan(scores.deviation) else scale.number(scores.deviation)
    return [scale.number(scores.mean), deviation, interval, str(scores.seeds)]


def _interval(scores: Scores, scale: Scale) -> str:
    return f"{scale.number(scores.low)} to {scale.number(scores.high)}"
