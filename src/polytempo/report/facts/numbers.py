"""Numbers as a reader wants them. NaN stands for a figure that is not known."""

import math

from polytempo.sim.result import Unit

NOTHING = "–"


def shown(value: float, unit: Unit) -> str:
    """A figure in the unit of its column: shares in percent, bytes in megabytes, counts without decimals."""
    if unit == "share":
        return percent(value)
    if unit == "bytes":
        return amount(value / 1e6)
    return rounded(value, 0) if unit == "count" else amount(value)


def amount(value: float) -> str:
    """A number as short as it stays useful: three digits that count, thousands with commas."""
    if math.isnan(value):
        return NOTHING
    decimals = 0 if value == 0 else min(max(2 - math.floor(math.log10(abs(value))), 0), 3)
    return f"{value:,.{decimals}f}"


def percent(value: float) -> str:
    """A share of one as a percentage with one decimal, without the sign."""
    return NOTHING if math.isnan(value) else f"{100 * value:.1f}"


def rounded(value: float, decimals: int) -> str:
    """A number with as many decimals as are asked for, thousands with commas."""
    return NOTHING if math.isnan(value) else f"{value:,.{decimals}f}"


def counted(number: int, noun: str) -> str:
    """``1 merge``, ``2 merges``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
