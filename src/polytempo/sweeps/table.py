"""A sweep as a table, and in words what was chosen."""

import math

import rich.box
from rich.table import Table
from rich.text import Text

from polytempo.learn.metrics import Scale
from polytempo.report.facts.numbers import NOTHING, counted
from polytempo.sweeps.result import Scores, Sweep
from polytempo.sweeps.space import shown_name, value_text


def sweep_table(sweep: Sweep) -> Table:
    """For the terminal: a row per trial with mean, deviation and 95 % interval over seeds, the chosen one bold. The
    scores are those on validation rows; without these rows, those on test rows."""
    best = sweep.best
    measure = f"{'test' if best is None else 'validation'} {sweep.scale.unit}"
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for name in sweep.names:
        table.add_column(shown_name(name).replace("_", " "), justify="right", min_width=8, overflow="fold")
    for title in (measure, "deviation", "95 % interval", "seeds"):
        table.add_column(title, justify="right", no_wrap=True)
    for trial in sweep.trials:
        scores = trial.test if best is None else trial.validation
        cells = [value_text(trial.assigned[name]) for name in sweep.names]
        cells += ["diverged", NOTHING, NOTHING, "0"] if trial.failure else _score_cells(scores, sweep.scale)
        table.add_row(*(Text(cell, style="bold" if trial is best else "") for cell in cells))
    return table


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
