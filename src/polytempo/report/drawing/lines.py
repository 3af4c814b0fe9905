"""What several plots draw: a figure over a method's seeds as a line or a bar, and its key in a legend."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D

from polytempo.report.drawing.canvas import INK, SMALL, evenly, plain
from polytempo.report.facts.contenders import Method

POINTS = 200  # per line: more than a screen shows, few enough for a small file


Line = tuple[np.ndarray, np.ndarray]  # where, and what is there (NaN where that is not known)
Band = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # where, lowest, mean and highest


def draw_lines(axes: Axes, methods: list[Method], against: str, name: str, scale: float = 1.0) -> None:
    """One line per method, the mean over its seeds, in a band from the lowest to the highest."""
    for method in methods:
        draw_band(axes, method, over_seeds(method, against, name, scale))


def draw_band(axes: Axes, method: Method, band: Band, **looks: Any) -> None:
    """The mean over a method's seeds as a line, the range from the lowest to the highest as a band around it."""
    at, lowest, middle, highest = band
    axes.plot(at, middle, **{"color": method.colour, "linestyle": method.dash, "linewidth": 1.6, **looks})
    if len(method.runs) > 1:
        axes.fill_between(at, lowest, highest, color=method.colour, alpha=0.18, linewidth=0)


def over_seeds(method: Method, against: str, name: str, scale: float) -> Band:
    """A figure of the evaluations over a method's seeds."""
    return band_of([(run.over_evaluations(against), scale * run.over_evaluations(name)) for run in method.runs])


def band_of(lines: Sequence[Line]) -> Band:
    """Where, lowest, mean and highest over some lines. They have their points at different places, so they are
    interpolated on the stretch that all of them cover."""
    known = [~np.isnan(at) & ~np.isnan(values) for at, values in lines]
    lines = [(at[kept], values[kept]) for (at, values), kept in zip(lines, known, strict=True) if kept.any()]
    if not lines:
        nothing = np.array([])
        return nothing, nothing, nothing, nothing
    if len(lines) == 1:
        at, values = lines[0]
        kept = evenly(len(at), POINTS)
        return at[kept], values[kept], values[kept], values[kept]
    start, end = max(at[0] for at, _ in lines), min(at[-1] for at, _ in lines)
    grid = np.linspace(start, max(start, end), POINTS)
    values = np.array([np.interp(grid, at, line) for at, line in lines])
    return grid, values.min(axis=0), values.mean(axis=0), values.max(axis=0)


def keys(methods: list[Method]) -> list[Line2D]:
    return [key(method.label, method.colour, method.dash, 2.0) for method in methods]


def key(label: str, colour: str, dash: Any, width: float) -> Line2D:
    return Line2D([], [], label=plain(label), color=colour, linestyle=dash, linewidth=width)


def ink_on(colour: str) -> str:
    """Dark or white, whichever reads better on a colour."""
    red, green, blue = to_rgb(colour)
    return "#1b1f24" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.55 else "white"


def bar(axes: Axes, at: float, values: np.ndarray, colour: str, alpha: float, note: str, height: float = 0.34) -> None:
    """A horizontal bar to the mean, a thin line from the lowest to the highest seed, the figure beside it."""
    known = values[~np.isnan(values)]
    end = float(known.max()) if len(known) else 0.0
    if len(known):
        axes.barh(at, known.mean(), height=height, color=colour, alpha=alpha)
    if len(known) > 1:
        axes.plot([known.min(), known.max()], [at, at], color=INK, linewidth=0.9)
    axes.annotate(
        note,
        (end, at),
        xytext=(3, 0),
        textcoords="offset points",
        va="center",
        fontsize=SMALL,
        color=INK,
    )
