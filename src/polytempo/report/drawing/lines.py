"""What several plots draw: a figure over a method's seeds as a line or a bar, and its key in a legend."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from polytempo.learn.metrics import Scale
from polytempo.report.drawing.canvas import INK, SMALL, plain
from polytempo.report.facts.contenders import Contender
from polytempo.report.facts.courses import Band, over_seeds


def draw_lines(axes: Axes, contenders: list[Contender], against: str, name: str, scale: float = 1.0) -> None:
    """One line per method, the mean over its seeds, in a band from the lowest to the highest."""
    for contender in contenders:
        draw_band(axes, contender, over_seeds(contender, against, name, scale))


def draw_band(axes: Axes, contender: Contender, band: Band, **looks: Any) -> None:
    """The mean over a method's seeds as a line, the range from the lowest to the highest as a band around it."""
    at, lowest, middle, highest = band
    marked = marks(contender, len(axes.lines))
    axes.plot(
        at, middle, **{"color": contender.colour, "linestyle": contender.dash, "linewidth": 1.6, **marked, **looks}
    )
    if len(contender.runs) > 1:
        axes.fill_between(at, lowest, highest, color=contender.colour, alpha=0.18, linewidth=0)


def marks(contender: Contender, before: int = 0) -> dict[str, Any]:
    """The markers of a method's line, a few along it, not where those of the lines before it are."""
    if not contender.marker:
        return {}
    return {"marker": contender.marker, "markersize": 4, "markevery": (0.03 * (before % 7), 0.21)}


def keys(contenders: list[Contender]) -> list[Line2D]:
    return [
        key(contender.label, contender.colour, contender.dash, 2.0, marker=contender.marker or None, markersize=4)
        for contender in contenders
    ]


def key(label: str, colour: str, dash: Any, width: float, **looks: Any) -> Line2D:
    return Line2D([], [], label=plain(label), color=colour, linestyle=dash, linewidth=width, **looks)


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


def limit_bars(axes: Axes, scale: Scale) -> None:
    """Bars of a metric begin at 0; a share ends at 100 %."""
    if scale.share:
        axes.set_xlim(0, 112)
        axes.set_xticks(range(0, 101, 20))
    else:
        axes.margins(x=0.15)
