"""How a figure goes on over time, as one line per run and one band per contender."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from polytempo.report.facts.choosing import evenly
from polytempo.report.facts.contenders import Contender

POINTS = 200  # per line: more than a screen shows, few enough for a small file
Line = tuple[np.ndarray, np.ndarray]  # where, and what is there (NaN where that is not known)


class Band(NamedTuple):
    """Several lines as one: where, and what is lowest, the mean and highest there."""

    at: np.ndarray
    lowest: np.ndarray
    mean: np.ndarray
    highest: np.ndarray


def over_seeds(contender: Contender, against: str, name: str, scale: float) -> Band:
    """A figure of the evaluations over a method's seeds."""
    return band_of([(run.over_evaluations(against), scale * run.over_evaluations(name)) for run in contender.runs])


def band_of(lines: Sequence[Line]) -> Band:
    """Where, lowest, mean and highest over some lines. They have their points at different places, so they are
    interpolated on the stretch that all of them cover."""
    known = [~np.isnan(at) & ~np.isnan(values) for at, values in lines]
    lines = [(at[kept], values[kept]) for (at, values), kept in zip(lines, known, strict=True) if kept.any()]
    if not lines:
        nothing = np.array([])
        return Band(nothing, nothing, nothing, nothing)
    if len(lines) == 1:
        at, values = lines[0]
        kept = evenly(len(at), POINTS)
        return Band(at[kept], values[kept], values[kept], values[kept])
    start, end = max(at[0] for at, _ in lines), min(at[-1] for at, _ in lines)
    grid = np.linspace(start, max(start, end), POINTS)
    values = np.array([np.interp(grid, at, line) for at, line in lines])
    return Band(grid, values.min(axis=0), values.mean(axis=0), values.max(axis=0))
