"""EchoPFL, written from the paper of Li et al. alone, as far as its rules are formulas: the clients' feedback (Eq. 3),
Algorithm 1 and the label of Eq. 4."""

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
