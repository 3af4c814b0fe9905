"""How much travels when, in intervals that a figure can show."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polytempo.report.facts.contenders import Contender
from polytempo.report.run import Run

MINUTE = 60.0
ENOUGH_MINUTES = 20  # runs that are shorter are shown in intervals of less than a minute
BINS = 80  # side by side, so that each can be seen


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


def with_traffic(contenders: Sequence[Contender]) -> list[Contender]:
    """The contenders of which something travelled, which is not so of Standalone."""
    return [contender for contender in contenders if contender.runs[0].traffic_log]


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
    intervals, interval = np.unique((time // resolution.seconds).astype(int), return_inverse=True)
    per_interval = np.bincount(interval, megabytes)
    bin_of = intervals // resolution.per_bin
    bins = int(end_of(run) // resolution.bin_seconds) + 1
    mean = np.bincount(bin_of, per_interval, bins) / resolution.per_bin
    busiest = np.zeros(bins)
    np.maximum.at(busiest, bin_of, per_interval)
    peak_at = resolution.bin_seconds * (int(busiest.argmax()) + 0.5)
    return Rate(mean, busiest, float(busiest.max()), peak_at)


def end_of(run: Run) -> float:
    """When the run ended, not before its last traffic."""
    return max(float(run.virtual_time or 0.0), float(run.traffic_log[-1]["time"]))


def _round_width(length: float) -> float:
    """The smallest of 1, 2, 5, 10, 20 ... (or 0.5, 0.2, 0.1 ...) that divides a length into no more than BINS."""
    least = max(length, 1e-9) / BINS
    power = 10.0 ** np.floor(np.log10(least))
    return float(next(power * digit for digit in (1, 2, 5, 10) if power * digit >= least))
