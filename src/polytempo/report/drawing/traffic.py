"""How much travels when: the upload and download rate against virtual time, and its peaks."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from polytempo.report.drawing.canvas import GRID, INK, SMALL, canvas, legend_above, name_axes, name_rows, row_height
from polytempo.report.facts.contenders import Method, methods_of
from polytempo.report.run import Run
from polytempo.report.table import amount

MINUTE = 60.0
ENOUGH_MINUTES = 20  # runs that are shorter are shown in intervals of less than a minute
BINS = 80  # side by side, so that each can be seen
STRIP = 0.84  # the height of a method's strip, in rows: twice its higher peak
PALE = 0.35
DIRECTIONS = (("up", -1, "^"), ("down", 1, "v"))  # with the side of the line (rows count downwards) and a mark


@dataclass(frozen=True)
class Resolution:
    """Traffic is counted in intervals of so many seconds, and so many intervals are drawn as one bin."""

    seconds: float
    per_bin: int

    @property
    def bin_seconds(self) -> float:
        return self.seconds * self.per_bin

    @property
    def unit(self) -> str:
        return "MB per minute" if self.seconds == MINUTE else f"MB per {self.seconds:g} s"


@dataclass(frozen=True)
class Rate:
    """Megabytes per interval in one direction: in each bin the mean and the busiest interval, and the peak."""

    mean: np.ndarray
    busiest: np.ndarray
    peak: float
    peak_at: float
    """The middle of the busiest bin, in seconds."""


def with_traffic(runs: Sequence[Run]) -> list[Method]:
    """The methods that say what travelled when, which Standalone and old runs do not."""
    return [method for method in methods_of(runs) if method.runs[0].traffic_log]


def resolution_of(end: float) -> Resolution:
    """How to show so many seconds: by the minute, several in a bin if they are too many to be seen, or in shorter
    intervals where minutes would be too few."""
    if end >= ENOUGH_MINUTES * MINUTE:
        return Resolution(MINUTE, max(1, round(_round_width(end / MINUTE))))
    return Resolution(_round_width(end), 1)


def rate(run: Run, direction: str, resolution: Resolution) -> Rate:
    """What travelled in one direction, from the start of a run to its end."""
    time = np.array([row["time"] for row in run.traffic_log])
    megabytes = np.array([row[direction] for row in run.traffic_log]) / 1e6
    intervals, place = np.unique((time // resolution.seconds).astype(int), return_inverse=True)
    per_interval = np.bincount(place, megabytes)
    bin_of = intervals // resolution.per_bin
    bins = int(_end(run) // resolution.bin_seconds) + 1
    mean = np.bincount(bin_of, per_interval, bins) / resolution.per_bin
    busiest = np.zeros(bins)
    np.maximum.at(busiest, bin_of, per_interval)
    peak_at = resolution.bin_seconds * (int(busiest.argmax()) + 0.5)
    return Rate(mean, busiest, float(busiest.max()), peak_at)


def traffic_rate(runs: Sequence[Run]) -> Figure:
    """Uploads above and downloads below a line against virtual time, one strip per method, each as high as its own
    peak, so that one method does not flatten the others; of each method its first seed."""
    methods = with_traffic(runs)
    longest = max(_end(method.runs[0]) for method in methods)
    resolution = resolution_of(longest)
    rates = [[rate(method.runs[0], name, resolution) for name, *_ in DIRECTIONS] for method in methods]
    figure, axes = canvas(row_height(len(methods), 0.66))
    for row, (method, of_method) in enumerate(zip(methods, rates, strict=True)):
        _draw_strip(axes, row, method, of_method, resolution.bin_seconds)
        peaks = [f"{amount(one.peak)} {name}" for one, (name, *_) in zip(of_method, DIRECTIONS, strict=True)]
        beside = axes.text(1.01, row, "\n".join(peaks), transform=axes.get_yaxis_transform(), va="center")
        beside.set(fontsize=SMALL, color=INK)
    over = axes.text(1.01, 1.0, f"peaks,\n{resolution.unit}", transform=axes.transAxes, va="bottom")
    over.set(fontsize=SMALL, color=INK)
    name_rows(axes, [method.label for method in methods])
    axes.set_xlim(0, resolution.bin_seconds * max(len(one.mean) for one, _ in rates))
    name_axes(axes, "virtual time (s)")
    if resolution.per_bin > 1:
        mean = Patch(color=INK, label=f"mean of {resolution.per_bin} minutes")
        legend_above(axes, [mean, Patch(color=INK, alpha=PALE, label="the busiest of them")])
    return figure


def traffic_caption(runs: Sequence[Run]) -> str:
    """How to read the figure."""
    methods = with_traffic(runs)
    resolution = resolution_of(max(_end(method.runs[0]) for method in methods))
    short = "" if resolution.seconds == MINUTE else " (minutes would be too few to see)"
    scale = " Heights are scaled row by row." if len(methods) > 1 else ""
    seeds = " Of each method the first seed." if any(len(method.runs) > 1 for method in methods) else ""
    return (
        f"Traffic over time in {resolution.unit}{short}, uploads above the line and downloads below it: a spike is "
        "many models at once, which the network must be built for, an even course is easy to carry. Triangles mark the "
        f"peaks, numbers say how high they are.{scale}{seeds}"
    )


def _draw_strip(axes: Axes, row: int, method: Method, rates: Sequence[Rate], bin_seconds: float) -> None:
    scale = STRIP / 2 / max(one.peak for one in rates)
    end = _end(method.runs[0])
    axes.fill_between([0, end], row - STRIP / 2, row + STRIP / 2, color=GRID, alpha=0.45, linewidth=0)
    for one, (_, side, mark) in zip(rates, DIRECTIONS, strict=True):
        edges = bin_seconds * np.arange(len(one.mean) + 1)
        for heights, alpha in ((one.busiest, PALE), (one.mean, 1.0)):
            tips = row + side * scale * heights
            axes.stairs(tips, edges, baseline=row, fill=True, color=method.colour, alpha=alpha, linewidth=0)
        axes.plot(one.peak_at, row + side * scale * one.peak, marker=mark, markersize=3.5, color=INK, clip_on=False)
    axes.plot([0, end], [row, row], color=INK, linewidth=0.6)


def _end(run: Run) -> float:
    """When the run ended, not before its last traffic."""
    return max(float(run.virtual_time or 0.0), float(run.traffic_log[-1]["time"]))


def _round_width(length: float) -> float:
    """The smallest of 1, 2, 5, 10, 20 ... (or 0.5, 0.2, 0.1 ...) that divides a length into no more than BINS."""
    least = max(length, 1e-9) / BINS
    power = 10.0 ** np.floor(np.log10(least))
    return float(next(power * digit for digit in (1, 2, 5, 10) if power * digit >= least))
