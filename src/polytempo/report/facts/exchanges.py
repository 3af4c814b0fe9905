"""What the exchanges of runs brought over time. In an exchange a client hands in its update and is answered with its
next model."""

from collections.abc import Sequence

import numpy as np

from polytempo.report.facts.contenders import WORLD, Contender, as_text
from polytempo.report.facts.courses import Band, Line, band_of
from polytempo.report.facts.mixtures import mixtures, uniform_kl
from polytempo.report.run import Run

POINTS = 40  # of a line, at most
EACH = 10  # exchanges that a point is the mean of, at least, where there are enough for a few points
FEW = 4


def course(run: Run, name: str, scale: float = 1.0) -> Line:
    """How a figure of a run's exchanges goes on over time: means of successive exchanges, as many in every point."""
    return _means(run.over_exchanges("time"), scale * run.over_exchanges(name))


def cluster_course(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """When the clusters' models were evaluated, and their accuracies in percent, clusters x evaluations."""
    known = [
        (row["time"], row["cluster_accuracy"]) for row in run.evaluations if row.get("cluster_accuracy") is not None
    ]
    if not known:
        return np.array([]), np.empty((0, 0))
    times, accuracies = zip(*known, strict=True)
    return np.array(times, float), 100 * np.array(accuracies, float).T


def uniform_references(contenders: Sequence[Contender]) -> list[tuple[Contender, Line]]:
    """What the uniform mixture would have had over the exchanges of all methods that share a world, with the first of
    these methods; usually there is one world."""
    worlds: dict[tuple[str, ...], list[Contender]] = {}
    for contender in contenders:
        world = tuple(as_text(contender.runs[0].config.get(name)) for name in WORLD)
        worlds.setdefault(world, []).append(contender)
    return [(same[0], _uniform(same)) for same in worlds.values()]


def divergence(contender: Contender) -> Band:
    return band_of([course(run, "kl") for run in contender.runs])


def _uniform(contenders: Sequence[Contender]) -> Line:
    """As far as the lines of the methods go: those of several seeds end with the shortest seed."""
    of_runs = [mixtures(run) for contender in contenders for run in contender.runs]
    times = np.concatenate([found.times for found in of_runs])
    divergences = np.concatenate([uniform_kl(found.true) for found in of_runs])
    order = np.argsort(times, kind="stable")
    at, means = _means(times[order], divergences[order])
    beside = np.concatenate([divergence(contender)[0] for contender in contenders])
    within = np.unique(np.clip(at, beside.min(), beside.max()))
    return within, np.interp(within, at, means)


def _means(times: np.ndarray, values: np.ndarray) -> Line:
    """The mean time and the mean value of successive exchanges; those without a value do not count."""
    known = np.flatnonzero(~np.isnan(values))
    if not len(known):
        return np.array([]), np.array([])
    parts = np.array_split(known, np.clip(len(known) // EACH, min(len(known), FEW), POINTS))
    return np.array([times[part].mean() for part in parts]), np.array([values[part].mean() for part in parts])
