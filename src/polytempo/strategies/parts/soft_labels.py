"""Soft labels: what a model makes of a client's data on average, as shares of the classes, and how unlike two are."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

SOFT_LABELS = "soft-labels"
"""The question for the soft label of the trained model."""
FIT = {"sample": "fit", "all": "fit-of-all"}
"""The question how well the received model fits, answered with its feedback and its soft label, by the rows that it is
answered from."""
SMALLEST = 1e-6
"""Added to every share, so that a class that one side never names does not make two sides infinitely unlike."""
ROUNDING = 1e-3
MOST_CLASSES = 100_000


def as_soft_label(answer: Any) -> np.ndarray | None:
    """A client's answer as shares of the classes; None for anything else, since clients may send what they like."""
    try:
        shares = np.asarray(answer, float)
    except (TypeError, ValueError, OverflowError):
        return None
    if shares.ndim != 1 or not 0 < len(shares) <= MOST_CLASSES or not ((shares >= 0) & (shares <= 1 + ROUNDING)).all():
        return None
    return shares if abs(shares.sum() - 1) <= ROUNDING else None


def soft_label_in(answers: Mapping[str, Any]) -> np.ndarray | None:
    """The soft label that a client answers: of the model it trained, else of the one it received."""
    return as_soft_label(answers.get(SOFT_LABELS, fit_in(answers).get("soft_labels")))


def fit_in(answers: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a client answers of how well the received model fits; empty if it says nothing of it."""
    fit = next((answers[name] for name in FIT.values() if name in answers), None)
    return fit if isinstance(fit, dict) else {}


def comparable(labels: Mapping[int, np.ndarray]) -> list[int]:
    """The clients whose soft labels have as many classes as most, by number."""
    counts = Counter(len(label) for label in labels.values())
    usual = max(counts, key=lambda classes: (counts[classes], classes), default=0)
    return sorted(client for client, label in labels.items() if len(label) == usual)


def mean_soft_label(labels: Mapping[int, np.ndarray]) -> np.ndarray | None:
    """The mean over the clients that can be compared; None if there are none."""
    if not labels:
        return None
    mean: np.ndarray = np.mean([labels[client] for client in comparable(labels)], axis=0)
    return mean


def members_soft_label(
    labels: Mapping[int, np.ndarray], members: Iterable[int], but: int | None = None
) -> np.ndarray | None:
    """The mean over these members; without one of them, unless it is alone."""
    known = {client: labels[client] for client in members if client in labels}
    return mean_soft_label({client: label for client, label in known.items() if client != but} or known)


def divergence(p: np.ndarray | None, q: np.ndarray | None) -> float:
    """``KL(p || q) + KL(q || p) = sum_c (p_c - q_c) (log p_c - log q_c)`` of smoothed shares; infinite where one is
    unknown or they do not name the same classes."""
    if p is None or q is None or len(p) != len(q):
        return float("inf")
    return float(divergences([p, q])[0, 1])


def divergences(labels: Sequence[np.ndarray]) -> np.ndarray:
    """The divergence of every pair."""
    shares = np.array(labels) + SMALLEST
    logs = np.log(shares)
    return np.array([((shares - own) * (logs - log)).sum(axis=1) for own, log in zip(shares, logs, strict=True)])
