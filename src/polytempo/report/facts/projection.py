"""Where the clients' own models lie before and after a drift, in the plane in which they differ most (PCA)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polytempo.report.facts.choosing import evenly
from polytempo.report.facts.lineage import groups_at
from polytempo.report.run import Run

SHOWN = 3  # drifts that are projected
FEW = 6  # drifts that are told apart: with more, the run is looked at as a whole


@dataclass(frozen=True, eq=False)
class Panel:
    """The clients at one evaluation: of those whose own model was known by then, the place in the plane (clients x 2),
    the cluster and the true group (``NO_GROUP`` where none is known)."""

    time: float
    clients: np.ndarray
    places: np.ndarray
    clusters: np.ndarray
    groups: np.ndarray


@dataclass(frozen=True, eq=False)
class Projection:
    """The clients before and after a drift, in one plane."""

    drift: float
    """When it came."""
    before: Panel
    after: Panel
    drifted: np.ndarray
    """Whose data changed in between."""
    variance: tuple[float, float]
    """The share of all differences between the models that each of the two axes shows."""


def drifts(run: Run) -> dict[float, list[int]]:
    """Whose data changed after the beginning, by time."""
    found: dict[float, list[int]] = {}
    for mark in run.marks:
        if mark["kind"] == "drift" and mark["time"] > 0:
            found.setdefault(float(mark["time"]), []).append(mark["client"])
    return dict(sorted(found.items()))


def projections(run: Run) -> list[Projection]:
    """The clients before and after each drift, at most ``SHOWN`` of them, the first and the last among them. Where
    drifts come at more than ``FEW`` times (each client after its own updates, say): before the first one and at the end
    of the run."""
    times = list(drifts(run))
    starts = times if len(times) <= FEW else times[:1]
    spans = zip(starts, [*starts[1:], np.inf], strict=False)
    found = [projection for span in spans if (projection := project(run, *span)) is not None]
    return [found[i] for i in evenly(len(found), SHOWN)] if found else []


def project(run: Run, drift: float, until: float = np.inf) -> Projection | None:
    """The clients at the last evaluation before a drift and at the last one before another time (the next drift, or the
    end of the run), by the two principal components of both together. None where there is no evaluation between the
    two times, or no sketch by the first."""
    before, after = _last_before(run, drift), _last_before(run, until)
    if before < 0 or after == before:
        return None
    known, known_after = _sketches(run, before), _sketches(run, after)
    if not known:
        return None
    plane, variance = _principal([*known.values(), *known_after.values()])
    drifted = {client for time, clients in drifts(run).items() if drift <= time < until for client in clients}
    return Projection(
        drift,
        _panel(run, before, known, plane[: len(known)]),
        _panel(run, after, known_after, plane[len(known) :]),
        np.array(sorted(drifted)),
        variance,
    )


def _last_before(run: Run, time: float) -> int:
    """The number of the last evaluation before a time; -1 if there is none."""
    return int(np.searchsorted(run.over_evaluations("time"), time, side="left")) - 1


def _sketches(run: Run, evaluation: int) -> dict[int, np.ndarray]:
    """The sketch of each client's own model that was the last one at an evaluation."""
    latest: dict[int, np.ndarray] = {}
    for row in run.sketch_log:
        if row["time"] <= run.evaluations[evaluation]["time"]:
            latest |= dict(zip(map(int, row["clients"]), np.array(row["sketches"], float), strict=True))
    return dict(sorted(latest.items()))


def _principal(sketches: Sequence[np.ndarray]) -> tuple[np.ndarray, tuple[float, float]]:
    """The two principal components of each sketch, and their shares of the variance."""
    joint = np.array(sketches)
    centred = joint - joint.mean(axis=0)
    left, lengths, right = np.linalg.svd(centred, full_matrices=False)
    signs = np.sign(right[np.arange(len(right)), np.abs(right).argmax(axis=1)])  # or the plane may be a mirror image
    first, second = np.square(lengths[:2]) / max(np.square(lengths).sum(), np.finfo(float).tiny)
    places: np.ndarray = (left * lengths * signs)[:, :2]
    return places, (float(first), float(second))


def _panel(run: Run, evaluation: int, known: dict[int, np.ndarray], places: np.ndarray) -> Panel:
    clients = np.array(list(known))
    time = float(run.evaluations[evaluation]["time"])
    clusters = run.per_client("per_client_cluster", evaluation).astype(int)
    return Panel(time, clients, places, clusters[clients], groups_at(run, time)[clients])
