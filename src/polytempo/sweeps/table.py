"""A sweep as a table for the terminal or as CSV, and in words what was chosen."""

import math
from collections.abc import Mapping

import rich.box
from rich.table import Table
from rich.text import Text

from polytempo.learn.metrics import Scale
from polytempo.report.csv_table import csv_text
from polytempo.report.facts.numbers import NOTHING, counted
from polytempo.report.table import full_width
from polytempo.sweeps.result import Scores, Sweep
from polytempo.sweeps.space import shown_name, value_text


def sweep_table(sweep: Sweep, width: int | None = None) -> Table:
    """For the terminal: a row per trial with mean, deviation and 95 % interval over seeds, the chosen one bold. The
    scores are those on validation rows; without these rows, those on test rows. Within a width, many names share one
    column."""
    table = _table(sweep, {name: shown_name(name).replace("_", " ") for name in sweep.names})
    if width is None or full_width(table) <= width:
        return table
    return _table(sweep, None)


def _table(sweep: Sweep, titles: Mapping[str, str] | None) -> Table:
    """With a column per name, by its title, or all of a trial in one."""
    best = sweep.best
    measure = f"{'test' if best is None else 'validation'} {sweep.scale.unit}"
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for title in ["trial"] if titles is None else titles.values():
        table.add_column(title, justify="left" if titles is None else "right", overflow="fold")
    for title in (measure, "deviation", "95 % interval", "seeds"):
        table.add_column(title, justify="right", no_wrap=True)
    for trial in sweep.trials:
        cells = [trial.words] if titles is None else [value_text(trial.assigned[name]) for name in titles]
        scores = trial.test if best is None else trial.validation
        cells += ["diverged", NOTHING, NOTHING, "0"] if trial.failure else _score_cells(scores, sweep.scale)
        table.add_row(*(Text(cell, style="bold" if trial is best else "") for cell in cells))
    return table


def sweep_csv(sweep: Sweep) -> str:
    """A row per trial: its values, mean, deviation, interval and number of seeds on validation rows, and whether it is
    the best; of the best the mean on test rows, too. Without validation rows, ``test`` is that of every trial."""
    best = sweep.best
    measured = ("mean", "deviation", "low", "high", "seeds")
    rows = []
    for trial in sweep.trials:
        known = (trial.test if best is None else trial.validation).figures()
        test = trial.test.figures()["mean"] if best is None or trial is best else None
        values = [value_text(trial.assigned[name]) for name in sweep.names]
        rows.append([*values, *(known[name] for name in measured), trial is best, test])
    return csv_text([*map(shown_name, sweep.names), *measured, "best", "test"], rows)


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


def _score_cells(scores: Scores, scale: Scale) -> list[str]:
    interval = NOTHING if math.isnan(scores.low) else _interval(scores, scale)
    deviation = NOTHING if math.isnan(scores.deviation) else scale.number(scores.deviation)
    return [scale.number(scores.mean), deviation, interval, str(scores.seeds)]


def _interval(scores: Scores, scale: Scale) -> str:
    return f"{scale.number(scores.low)} to {scale.number(scores.high)}"
