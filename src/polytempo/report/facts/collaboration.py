"""Who learns from whom: the graphs that are shown, their figures, and how clients are arranged to be looked at."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from polytempo.report.facts.graph import Graph
from polytempo.report.run import Run

STEPS = 200  # of the layout: by then nothing moves that the eye would see
PULL = 3.0  # of all ties of a client together: more, and clients that are tied would cover each other


def has_graphs(run: Run) -> bool:
    """Did anybody ever know whom to learn from?"""
    return any(row["rows"] for row in run.graph_log)


def chosen_graphs(run: Run, times: Sequence[float]) -> list[Graph]:
    """The graphs at those of these times by which there was one, in order; without times the first one, the middle one
    and the last."""
    if times:
        reached = sorted(time for time in times if time >= first_time(run))
        return list({graph.time: graph for graph in map(run.graph_at, reached)}.values())
    estimated = [graph for graph in run.graphs() if graph.rows]
    return [estimated[i] for i in sorted({0, (len(estimated) - 1) // 2, len(estimated) - 1})]


def first_time(run: Run) -> float:
    """When the first graph with a row was seen."""
    return float(next(row["time"] for row in run.graph_log if row["rows"]))


@dataclass(frozen=True)
class GraphFigures:
    """Means over the clients that have a row, NaN if there are none."""

    neighbours: float
    """Others that a client learns from."""
    own_weight: float
    """What it keeps of itself."""
    within_group: float
    """The share of all foreign weight that comes from the client's own true group, NaN where groups are not known."""


def figures_of(graph: Graph, groups: np.ndarray | None) -> GraphFigures:
    """What a graph amounts to; ``groups`` are the clients' true groups where they are known."""
    known = graph.estimated()
    if not known.any():
        return GraphFigures(np.nan, np.nan, np.nan)
    foreign = graph.foreign()[known]
    own = graph.matrix().diagonal()[known]
    within = np.nan
    if groups is not None and foreign.sum() > 0:
        within = float(foreign[groups[known][:, None] == groups].sum() / foreign.sum())
    return GraphFigures(float(np.count_nonzero(foreign, axis=1).mean()), float(own.mean()), within)


def neighbours_together(graph: Graph, groups: np.ndarray | None) -> np.ndarray:
    """The clients in an order in which neighbours stand together: true groups one after the other where they are known,
    and within them (or over all) the leaves of a tree that joins clients with the same neighbours first."""
    from scipy.cluster.hierarchy import leaves_list, linkage  # here, because it takes a while to import
    from scipy.spatial.distance import squareform

    if graph.clients < 3:
        return np.arange(graph.clients)
    ties = _ties(graph)
    profiles = ties + np.diag(np.maximum(ties.max(axis=1), 1e-9))  # clients with nothing in common are far apart
    profiles /= np.linalg.norm(profiles, axis=1, keepdims=True)
    distances = np.clip(1.0 - profiles @ profiles.T, 0.0, None)
    np.fill_diagonal(distances, 0.0)
    tree = linkage(squareform(distances, checks=False), "average", optimal_ordering=graph.clients <= 300)
    position = np.argsort(leaves_list(tree))
    return np.argsort(position) if groups is None else np.lexsort((position, groups))


class Edge(NamedTuple):
    """Two clients and the larger of the weights that they have in each other's models."""

    first: int
    second: int
    weight: float


def edges_of(graph: Graph, most: int) -> list[Edge]:
    """Pairs of clients of which one gives the other more weight than its average over all others; the strongest ones,
    the weakest of them first."""
    foreign = np.nan_to_num(graph.foreign())
    even = foreign.sum(axis=1, keepdims=True) / max(graph.clients - 1, 1)
    telling = np.where(foreign > even + 1e-6, foreign, 0.0)  # weights are rounded: all alike is not more than average
    weights = np.triu(np.maximum(telling, telling.T), k=1)
    first, second = np.nonzero(weights)
    strongest = np.argsort(-weights[first, second], kind="stable")[:most][::-1]
    return [Edge(int(first[i]), int(second[i]), float(weights[first[i], second[i]])) for i in strongest]


def layout(graph: Graph, order: np.ndarray) -> np.ndarray:
    """A place in the plane for every client (clients x 2): ties pull, everybody pushes everybody away, and the middle
    pulls a little, so that nobody is lost. Begins with the clients on a circle in this order, so it is always the
    same."""
    n = graph.clients
    angle = np.empty(n)
    angle[order] = 2 * np.pi * np.arange(n) / max(n, 1)
    places = np.stack([np.cos(angle), np.sin(angle)])
    ties = _ties(graph)
    ties *= PULL / max(float(ties.sum()) / max(n, 1), 1e-9)
    apart = 1.0 / np.sqrt(max(n, 1))
    for step in range(STEPS):
        gaps = places[:, :, None] - places[:, None, :]
        distance = np.maximum(np.hypot(*gaps), 1e-3)
        push = apart**2 / distance**2 - ties * distance / apart
        force = (push * gaps).sum(axis=2) - 0.5 * places
        length = np.maximum(np.hypot(*force), 1e-9)
        places += force / length * np.minimum(length, 0.1 * (1 - step / STEPS))
    return places.T


def _ties(graph: Graph) -> np.ndarray:
    """How much two clients learn from each other, both ways together."""
    foreign = np.nan_to_num(graph.foreign())
    both: np.ndarray = foreign + foreign.T
    return both
