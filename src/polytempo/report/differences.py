"""The differences between contenders in words and cells, for the terminal and for the HTML page: is the best mean
really better than the others?"""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from polytempo.learn.metrics import Scale
from polytempo.report.facts.contenders import Contender, contenders_of
from polytempo.report.facts.numbers import NOTHING, counted
from polytempo.report.facts.significance import LEVEL, MOST_SEEDS, Difference, differences_between, fewest_seeds
from polytempo.report.run import Run


def titles(scale: Scale) -> tuple[str, ...]:
    """The headings of the cells."""
    unit = "points" if scale.share else scale.name
    cells = ("95 % interval", "p", "verdict", "seeds", "seeds needed", "clients better / equal / worse")
    return ("method", f"difference, {unit}", *cells)


def differences(runs: Sequence[Run]) -> list[Difference]:
    """Every method against the one whose used models are best on average, paired by seed."""
    return differences_between(contenders_of(runs))


def heading(found: Sequence[Difference], scale: Scale) -> str:
    """What the rows are compared with."""
    return f"Used {scale.name} against that of {found[0].reference}, which has the best mean"


def difference_cells(row: Difference, scale: Scale) -> list[str]:
    """One row as text, in the order of the titles."""
    return [
        row.contender,
        signed(row.mean, scale),
        NOTHING if math.isnan(row.low) else f"{signed(row.low, scale)} to {signed(row.high, scale)}",
        p_text(row.p),
        row.verdict,
        str(row.seeds),
        _needed(row),
        NOTHING if row.clients is None else " / ".join(map(str, row.clients)),
    ]


def difference_figures(row: Difference) -> dict[str, Any]:
    """One row for scripts: its fields without the contender's name, null for what is not known."""
    fields = {name: value for name, value in asdict(row).items() if name != "contender"}
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in fields.items()}


def notes(found: Sequence[Difference]) -> list[str]:
    """How to read the table, and what it cannot say."""
    seeds, methods = max((row.seeds for row in found), default=0), len(found) + 1
    needed = fewest_seeds(LEVEL / (methods * (methods - 1) // 2))
    if seeds < 2:
        return [
            "One seed: nothing can be said across seeds, and no method is marked as the best. Clients are counted by a "
            f"test on their own test rows, which says how these runs differ. Take at least {needed} seeds (--seeds)."
        ]
    read = [
        f"Paired by seed (up to {seeds}). p: exact sign-flip test, two-sided, corrected for all pairs of methods "
        "(Holm). Interval: bootstrap over seeds. Seeds needed: for a power of 80 % at this difference and deviation. "
        "Clients: by a test on their own test rows, all seeds together."
    ]
    if seeds < needed:
        read.append(
            f"With {counted(seeds, 'seed')} and {methods} methods no difference can be shown at the 5 % level, however "
            f"large it is. Take at least {needed} seeds (--seeds)."
        )
    return read


def meaning_of_bold(contenders: Sequence[Contender]) -> str:
    """A remark on what bold means in a table of these contenders."""
    if max(len(contender.runs) for contender in contenders) < 2:
        return "With one seed no best is marked."
    return "Bold: the best of a column, where it is better than every other over the seeds (sign-flip test, 5 %)."


def signed(value: float, scale: Scale) -> str:
    """A difference with its sign; of shares, in percentage points."""
    if math.isnan(value):
        return NOTHING
    return (f"{100 * value:+.1f}" if scale.share else f"{value:+.4g}").replace("-", "−")


def p_text(p: float) -> str:
    """A probability with three decimals."""
    return NOTHING if math.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.3f}"


def _needed(row: Difference) -> str:
    if row.seeds < 2:
        return NOTHING
    return f"> {MOST_SEEDS:,}" if row.seeds_needed is None else str(row.seeds_needed)
