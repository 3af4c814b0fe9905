"""A table as a chart: for each row its mean, the 95 % interval over seeds, the seeds, and the paper's figure; of served
models also what clients use in their place."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from polytempo.papers.bench import Column
from polytempo.papers.claims.verdicts import FEWEST_SEEDS, half_interval
from polytempo.papers.pages.svg import circle, drawing, number, path, text

WIDTH, TOP, LINE, FIGURES = 720, 58, 20, 110
LETTER = 6.4
"""Pixels, about."""
TICKS = 8
FAR = 10
"""An axis is logarithmic if its largest value is so many times its smallest, and it shows quotients."""


class Axis(NamedTuple):
    """From values to pixels."""

    low: float
    high: float
    left: float
    right: float
    logarithmic: bool

    def at(self, value: float) -> float:
        """Within the axis."""
        low, high, here = (math.log(max(v, 1e-9)) if self.logarithmic else v for v in (self.low, self.high, value))
        return self.left + (self.right - self.left) * min(max((here - low) / (high - low), 0.0), 1.0)

    def ticks(self) -> list[float]:
        if self.logarithmic:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            every = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
            return [tick for tick in every if self.low <= tick <= self.high]
        step = _step((self.high - self.low) / TICKS)
        first = math.ceil(self.low / step - 1e-9)
        return [n * step for n in range(first, math.floor(self.high / step + 1e-9) + 1)]


def chart(title: str, column: Column, rows: Sequence[Mapping[str, Any]], used: Column | None = None) -> str | None:
    """Of the rows of ``table_rows``; None where no row has the figure. ``used`` is shown where it differs."""
    cells = {row["label"]: row[column.title] for row in rows}
    values = {label: _known(cell["ours"]) for label, cell in cells.items()}
    papers = {label: cell["paper"] for label, cell in cells.items() if cell.get("paper") is not None}
    if not any(values.values()):
        return None
    others = _others(rows, values, column, used)
    known = [*(value for of in values.values() for value in of), *papers.values(), *others.values()]
    axis = _axis(known, 16 + LETTER * max(map(len, cells)), WIDTH - FIGURES, column.relative)
    bottom = TOP + LINE * len(cells)
    parts = [
        text(12, 20, f"{title}: {column.title}", bold=True),
        *_legend(bool(papers), bool(others)),
        *_grid(axis, bottom),
    ]
    for row, (label, cell) in enumerate(cells.items()):
        y = TOP + LINE * row + LINE / 2
        parts.append(text(12, y + 4, label))
        parts += _drawn(values[label], axis, y)
        if label in others:
            parts.append(circle(axis.at(others[label]), y, 4, "blue", filled=False))
        if label in papers:
            parts.append(_diamond(axis.at(papers[label]), y))
        parts.append(text(WIDTH - FIGURES + 14, y + 4, _figure(values[label], cell["ours"], column), "faint"))
    return drawing(WIDTH, bottom + 24, f"{title}: {column.title}", parts)


def _others(
    rows: Sequence[Mapping[str, Any]], values: Mapping[str, Sequence[float]], column: Column, used: Column | None
) -> dict[str, float]:
    """The mean of what clients use, where it is not what they are served."""
    if used is None:
        return {}
    means = {
        row["label"]: fmean(of) for row in rows if (of := _known(row[used.title]["ours"])) and values[row["label"]]
    }
    least = 10**-column.digits
    return {label: mean for label, mean in means.items() if abs(mean - fmean(values[label])) >= least}


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _axis(values: Sequence[float], left: float, right: float, quotients: bool) -> Axis:
    low, high = min(values), max(values)
    if quotients and low > 0 and high / low > FAR:
        return Axis(low / 1.2, high * 1.2, left, right, logarithmic=True)
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return Axis(low - room, high + room, left, right, logarithmic=False)


def _step(least: float) -> float:
    """1, 2 or 5 times a power of ten, at least this."""
    power = 10.0 ** math.floor(math.log10(least))
    return power * next(digit for digit in (1, 2, 5, 10) if digit * power >= least * (1 - 1e-9))


def _legend(papers: bool, used: bool) -> list[str]:
    parts = [*_dot(18, 38), text(34, 42, "ours: mean, 95 % interval, seeds", "faint")]
    x = 250
    if used:
        parts += [circle(x, 38, 4, "blue", filled=False), text(x + 10, 42, "what clients use", "faint")]
        x += 124
    return parts + ([_diamond(x, 38), text(x + 10, 42, "the paper", "faint")] if papers else [])


def _grid(axis: Axis, bottom: float) -> list[str]:
    parts = []
    for tick in axis.ticks():
        x = axis.at(tick)
        parts.append(path(f"M{number(x)} {TOP}V{number(bottom)}", "grid", 1))
        parts.append(text(x, bottom + 15, f"{tick:,.6g}", "faint", "middle"))
    return parts


def _drawn(values: Sequence[float], axis: Axis, y: float) -> list[str]:
    if not values:
        return []
    parts = [circle(axis.at(value), y, 2, "faint") for value in values] if len(values) > 1 else []
    mean = fmean(values)
    if len(values) >= FEWEST_SEEDS:
        half = half_interval(values)
        ends = number(axis.at(mean - half)), number(axis.at(mean + half))
        parts.append(path(f"M{ends[0]} {number(y)}H{ends[1]}", "blue", 2))
    return [*parts, circle(axis.at(mean), y, 4, "blue")]


def _dot(x: float, y: float) -> list[str]:
    return [path(f"M{number(x - 9)} {number(y)}H{number(x + 9)}", "blue", 2), circle(x, y, 4, "blue")]


def _diamond(x: float, y: float) -> str:
    return path(f"M{number(x - 5)} {number(y)}l5-5 5 5-5 5z", "orange")


def _figure(values: Sequence[float], ours: Sequence[float | None], column: Column) -> str:
    """The mean as a number, and of how many seeds where it is not of all."""
    if not values:
        return column.missing if ours else "–"
    mean = f"{fmean(values):,.{column.digits}f}"
    return mean if len(values) == len(ours) else f"{mean} ({len(values)} of {len(ours)})"
