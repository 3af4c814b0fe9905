"""The share of its time in which each client had nothing to do."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from polytempo.report.drawing.canvas import GRID, INK, SMALL, canvas, name_axes, name_rows, row_height
from polytempo.report.facts.contenders import contenders_of
from polytempo.report.facts.numbers import percent
from polytempo.report.facts.speed import idle_by_speed
from polytempo.report.run import Run

STRIP = 0.75  # the height of a method's strip of idle shares, in rows; all of it is 100 %
BINS = 100  # clients side by side in such a strip; of more, neighbours are averaged


def idle_shares(runs: Sequence[Run]) -> Figure:
    """The share of its time in which each client had nothing to do, from the slowest to the fastest device: one strip
    per method, means over its seeds."""
    known = [(contender, idle) for contender in contenders_of(runs) if len(idle := idle_by_speed(contender))]
    figure, axes = canvas(row_height(len(known), 0.55) if len(known) > 1 else 3.0)
    if len(known) == 1:
        ((contender, idle),) = known
        axes.stairs(*_side_by_side(100 * idle), fill=True, color=contender.colour, alpha=0.75)
        axes.set_ylim(0, 100)
        axes.text(1, 1.01, _mean(idle), transform=axes.transAxes, ha="right", va="bottom", fontsize=SMALL, color=INK)
    else:
        for row, (contender, idle) in enumerate(known):
            top, base = row - STRIP / 2, row + STRIP / 2
            axes.axhspan(top, base, color=GRID, alpha=0.45, linewidth=0)
            heights, edges = _side_by_side(idle)
            axes.stairs(base - STRIP * heights, edges, baseline=base, fill=True, color=contender.colour, alpha=0.85)
            axes.text(101, row, _mean(idle), va="center", fontsize=SMALL, color=INK)
        name_rows(axes, [contender.label for contender, _ in known])
        axes.grid(visible=False)
    axes.set_xlim(0, 100)
    name_axes(axes, "clients, from slowest to fastest device (%)", "idle time (%)" if len(known) == 1 else "")
    return figure


def _side_by_side(idle: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Heights and edges of stairs that look like one bar per client, or per few neighbours where there are many."""
    heights = np.array([part.mean() for part in np.array_split(idle, min(len(idle), BINS))])
    gap = 0.1 if len(heights) <= 40 else 0.0
    edges = np.arange(len(heights))[:, None] + np.array([gap, 1 - gap])
    with_gaps = np.stack([heights, np.zeros_like(heights)], axis=1)
    return with_gaps.ravel()[:-1], 100 / len(heights) * edges.ravel()


def _mean(idle: np.ndarray) -> str:
    return f"mean {percent(float(idle.mean()))} %"
