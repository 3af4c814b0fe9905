"""EchoPFL, written from the paper of Li et al. alone, as far as its rules are formulas: the clients' feedback (Eq. 3),
Algorithm 1, the label of Eq. 4, and on which cluster an update counts (section 4.2), by L1 (Eq. 1) or by KL."""

from collections.abc import Sequence

import numpy as np


def feedback(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Chi-squared of predicted against actual labels, times the variance of the mean soft label. ``outputs`` are what
    the cluster's model says of each sample, before the softmax."""
    soft = np.array([np.exp(row) / np.exp(row).sum() for row in outputs.astype(np.float64)])
    chi_squared = 0.0
    for label in set(labels.tolist()):
        actual = np.mean([one == label for one in labels])
        predicted = np.mean([row.argmax() == label for row in soft])
        chi_squared += (predicted - actual) ** 2 / actual
    s_c = soft.mean(axis=0)
    return float(chi_squared * ((s_c - s_c.mean()) ** 2).mean())


def merged(v_main: np.ndarray, v_aux: np.ndarray, u_main: np.ndarray) -> np.ndarray:
    """Algorithm 1: a coordinate follows the auxiliary model as far as the last update of the main one points there."""
    x = [(aux - main) * (update - main) for main, aux, update in zip(v_main, v_aux, u_main, strict=True)]
    if max(x) <= 0:
        return v_main
    alpha = [max(one, 0) / max(x) for one in x]
    return np.array([a * aux + (1 - a) * main for a, aux, main in zip(alpha, v_aux, v_main, strict=True)])


def label(before: np.ndarray, broadcast: np.ndarray, now: np.ndarray) -> bool:
    """Eq. 4, of the moment before ``now``: had as much changed since the broadcast as was about to change?"""
    return bool(np.abs(before - broadcast).sum() >= np.abs(before - now).sum())


def labels(models: Sequence[np.ndarray], sent: Sequence[bool]) -> list[bool]:
    """Of a cluster whose models followed each other; each was broadcast, or not, when it was made. The first was."""
    found, broadcast = [], models[0]
    for place in range(1, len(models) - 1):
        found.append(label(models[place], broadcast, models[place + 1]))
        if sent[place]:
            broadcast = models[place]
    return found


class Clusters:
    """The first C updates found clusters. Every later one goes to the nearest, and counts there as so many members."""

    def __init__(self, first: int, counts_as: float, by: str) -> None:
        self.first, self.counts_as, self.by = first, counts_as, by
        self.models: list[np.ndarray] = []
        self.home: dict[int, int] = {}
        self.soft: dict[int, np.ndarray] = {}

    def received(self, i: int, u: np.ndarray, soft: np.ndarray) -> None:
        self.soft[i] = soft
        if i not in self.home and len(self.models) < self.first:
            self.home[i] = len(self.models)
            self.models.append(u)
            return
        away = [self.distance(i, u, c) for c in range(len(self.models))]
        if i not in self.home or min(away) < away[self.home[i]]:
            self.home[i] = int(np.argmin(away))
        c = self.home[i]
        members = sum(home == c for home in self.home.values())
        self.models[c] = (members * self.models[c] + self.counts_as * u) / (members + self.counts_as)

    def distance(self, i: int, u: np.ndarray, c: int) -> float:
        if self.by == "l1":
            return float(np.abs(u - self.models[c]).sum())
        theirs = [self.soft[j] for j, home in self.home.items() if home == c]
        others = [self.soft[j] for j, home in self.home.items() if home == c and j != i]
        p, q = self.soft[i], np.mean(others or theirs, axis=0)
        return float((p * np.log(p / q) + q * np.log(q / p)).sum()) if theirs else np.inf
