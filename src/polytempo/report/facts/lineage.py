"""The clusters of a run: when each began and ended, who was in it, and which came from which."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from polytempo.report.run import Run

NO_GROUP = -1


@dataclass(frozen=True, eq=False)
class ClusterLife:
    """One cluster from its beginning to its end."""

    number: int
    began: float
    ended: float
    clients: np.ndarray
    """Who was in it at its end."""
    newborn: np.ndarray
    """Who was in it when a split or an expansion made it; nobody if none did."""
    parts: tuple[int, ...]
    """The clusters it split into."""
    why: Mapping[str, float]
    """The figures that decided its split."""


def lineage(run: Run) -> dict[int, ClusterLife]:
    """All clusters that a split made or an evaluation saw, by number. A beginning or an end that no split, expansion or
    merge explains is known only from the evaluations."""
    nobody = np.array([], dtype=int)
    seen = _seen(run)
    ends = {split["cluster"]: split for split in run.splits}
    births = {
        part: (float(split["time"]), np.array(members, dtype=int))
        for split in run.splits
        for part, members in zip(split["parts"], split["members"], strict=True)
    }
    numbers = sorted({*seen, *ends, *births})
    births |= {
        row["target"]: (float(row["time"]), np.array(row["clients"], dtype=int))
        for row in run.regroupings
        if row["kind"] == "expansion"
    }
    merged = {row["source"]: float(row["time"]) for row in run.regroupings if row["kind"] == "merge"}
    family = {}
    for number in numbers:
        born, newborn = births.get(number, (0.0, nobody))
        first, ended, clients = seen.get(number, (born, _end(run), newborn))
        began = born if number in births else first
        split = ends.get(number)
        if split is None:
            family[number] = ClusterLife(number, began, merged.get(number, ended), clients, newborn, (), {})
        else:
            clients = np.array([client for part in split["members"] for client in part], dtype=int)
            family[number] = ClusterLife(
                number, began, float(split["time"]), clients, newborn, tuple(split["parts"]), split["why"]
            )
    return family


def has_joiners(family: Mapping[int, ClusterLife]) -> bool:
    """Did clients join a cluster after the split that made it?"""
    return any(len(c.newborn) and not np.isin(c.clients, c.newborn).all() for c in family.values())


def _seen(run: Run) -> dict[int, tuple[float, float, np.ndarray]]:
    """The first and the last time at which the evaluations saw each cluster, and who was in it then."""
    times = run.over_evaluations("time")
    seen: dict[int, tuple[float, float, np.ndarray]] = {}
    for i, time in enumerate(times.tolist()):
        cluster_of = run.per_client("per_client_cluster", i)
        until = _end(run) if i == len(times) - 1 else time
        for number in np.unique(cluster_of):
            first = seen[int(number)][0] if int(number) in seen else time if i else 0.0
            seen[int(number)] = (first, until, np.flatnonzero(cluster_of == number))
    return seen


def _end(run: Run) -> float:
    return float(run.virtual_time or 0.0)


def groups_at(run: Run, time: float) -> np.ndarray:
    """The true group of every client at a time; all ``NO_GROUP`` where none are known."""
    times = run.over_evaluations("time")
    at = max(int(np.searchsorted(times, time, side="right")) - 1, 0)
    groups = run.per_client("per_client_group", at)
    return groups.astype(int) if len(groups) else np.full(run.clients(), NO_GROUP)


def group_changes(run: Run) -> list[float]:
    """When clients had other true groups than before: the evaluations that saw it first."""
    known = [run.per_client("per_client_group", i) for i in range(len(run.evaluations))]
    times = run.over_evaluations("time").tolist()
    return [times[i] for i in range(1, len(known)) if not np.array_equal(known[i - 1], known[i])]


def composition(clients: np.ndarray, groups: np.ndarray) -> dict[int, int]:
    """How many of the clients are of each true group, by group."""
    numbers, counts = np.unique(groups[clients], return_counts=True)
    return dict(zip(numbers.tolist(), counts.tolist(), strict=True))


def largest_group(clients: np.ndarray, groups: np.ndarray) -> int:
    """The true group that most of the clients are of."""
    counts = composition(clients, groups)
    return max(counts, key=lambda group: counts[group], default=NO_GROUP)


def described(number: int, clients: np.ndarray, groups: np.ndarray) -> str:
    """``cluster 3: 20 clients, all of group 0``."""
    counts = sorted(composition(clients, groups).items(), key=lambda item: -item[1])
    text = f"cluster {number}: {len(clients)} client{'' if len(clients) == 1 else 's'}"
    if not counts or counts[0][0] == NO_GROUP:
        return text
    if len(counts) == 1:
        return f"{text}, {'all of ' if len(clients) > 1 else ''}group {counts[0][0]}"
    shown = ", ".join(f"{count} of group {group}" for group, count in counts[:2])
    return f"{text}, {shown}{', …' if len(counts) > 2 else ''}"


def known_groups(run: Run, time: float) -> np.ndarray | None:
    """The true group of every client at a time; None where there are no groups."""
    groups = groups_at(run, time)
    return None if NO_GROUP in groups else groups
