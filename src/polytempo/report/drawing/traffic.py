"""How much travels when: the upload and download rate against virtual time, and its peaks."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from polytempo.report.drawing.canvas import GRID, INK, SMALL, canvas, legend_above, name_axes, name_rows, row_height
from polytempo.report.facts.contenders import Contender, contenders_of
from polytempo.report.facts.numbers import amount
from polytempo.report.facts.traffic import Rate, end_of, rate, resolution_of, with_traffic
from polytempo.report.run import Run

STRIP = 0.84  # the height of a method's strip, in rows: twice its higher peak
PALE = 0.35
DIRECTIONS = (("up", -1, "^"), ("down", 1, "v"))  # with the side of the line (rows count downwards) and a mark


def traffic_rate(runs: Sequence[Run]) -> Figure:
    """Uploads above and downloads below a line against virtual time, one strip per method, each as high as its own
    peak, so that one method does not flatten the others; of each method its first seed."""
    contenders = with_traffic(contenders_of(runs))
    longest = max(end_of(contender.runs[0]) for contender in contenders)
    resolution = resolution_of(longest)
    rates = [[rate(contender.runs[0], name, resolution) for name, *_ in DIRECTIONS] for contender in contenders]
    figure, axes = canvas(row_height(len(contenders), 0.66))
    for row, (contender, of_contender) in enumerate(zip(contenders, rates, strict=True)):
        _draw_strip(axes, row, contender, of_contender, resolution.bin_seconds)
        peaks = [f"{amount(one.peak)} {name}" for one, (name, *_) in zip(of_contender, DIRECTIONS, strict=True)]
        beside = axes.text(1.01, row, "\n".join(peaks), transform=axes.get_yaxis_transform(), va="center")
        beside.set(fontsize=SMALL, color=INK)
    over = axes.text(1.01, 1.0, f"peaks,\n{resolution.unit}", transform=axes.transAxes, va="bottom")
    over.set(fontsize=SMALL, color=INK)
    name_rows(axes, [contender.label for contender in contenders])
    axes.set_xlim(0, resolution.bin_seconds * max(len(one.mean) for one, _ in rates))
    name_axes(axes, "virtual time (s)")
    if resolution.per_bin > 1:
        mean = Patch(color=INK, label=f"mean of {resolution.per_bin} minutes")
        legend_above(axes, [mean, Patch(color=INK, alpha=PALE, label="the busiest of them")])
    return figure


def _draw_strip(axes: Axes, row: int, contender: Contender, rates: Sequence[Rate], bin_seconds: float) -> None:
    scale = STRIP / 2 / max(one.peak for one in rates)
    end = end_of(contender.runs[0])
    axes.fill_between([0, end], row - STRIP / 2, row + STRIP / 2, color=GRID, alpha=0.45, linewidth=0)
    for one, (_, side, mark) in zip(rates, DIRECTIONS, strict=True):
        edges = bin_seconds * np.arange(len(one.mean) + 1)
        for heights, alpha in ((one.busiest, PALE), (one.mean, 1.0)):
            tips = row + side * scale * heights
            axes.stairs(tips, edges, baseline=row, fill=True, color=contender.colour, alpha=alpha, linewidth=0)
        axes.plot(one.peak_at, row + side * scale * one.peak, marker=mark, markersize=3.5, color=INK, clip_on=False)
    axes.plot([0, end], [row, row], color=INK, linewidth=0.6)
