"""CDFL's Algorithm 2, written from the paper of Zhu and Li alone, cluster by cluster; and our estimate, as a problem of
least squares that is solved by its optimality conditions."""

from collections.abc import Sequence

import numpy as np


def distribution_estimate(
    losses: Sequence[float],
    own_losses: Sequence[float],
    distances: Sequence[float],
    c: tuple[float, float],
    bars: tuple[float, float, float],
    magnify: float,
) -> np.ndarray:
    """``losses`` are F(v; D_k), ``own_losses`` F(w_k; D_k), ``distances`` ||v - w_k||; ``magnify`` is A."""
    clusters = range(len(losses))
    loss = [losses[k] - bars[0] for k in clusters]
    gap = [abs(own_losses[k] - losses[k]) - bars[1] for k in clusters]
    apart = [distances[k] - bars[2] for k in clusters]
    scores = []
    for k in clusters:
        others = [i for i in clusters if i != k]
        score = c[0] * sum(loss[i] for i in others) / sum(loss)
        score += c[1] * sum(gap[i] for i in others) / sum(gap)
        score += (1 - c[0] - c[1]) * sum(apart[i] for i in others) / sum(apart)
        scores.append(score / (len(losses) - 1))
    raised = [np.exp(magnify * score) for score in scores]
    return np.array(raised) / sum(raised)


def update_ratios(shares: Sequence[float], least: float, beta0: float, age: float, a: float, b: float) -> list[float]:
    """beta_k for every cluster. ``age`` is e_k - tau, which is t - tau for every cluster that the update moves."""
    ratios = []
    for share in shares:
        first = 0.0 if share < least else share / max(shares)
        second = 1.0 if age < b else 1 / (a * age + 1)
        ratios.append(beta0 * first * second)
    return ratios


def shown_lessons(first_models: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """``argmin over c with sum 0 of ||d - sum_k c_k w_k||``, d = (v - u) / ||v - u|| and w_k the first models of the
    clusters, by the Lagrange conditions: over such c, taking the mean off the w_k changes nothing."""
    direction = (end - start) / np.sqrt(((end - start) ** 2).sum())
    k = len(first_models)
    system = np.zeros((k + 1, k + 1))
    system[:k, :k] = first_models @ first_models.T
    system[:k, k] = system[k, :k] = 1
    return np.linalg.solve(system, np.append(first_models @ direction, 0.0))[:k]


def mixtures_in_turn(
    first_models: np.ndarray, updates: Sequence[tuple[int, np.ndarray, np.ndarray]]
) -> list[np.ndarray]:
    """The mixture after each update (client, start, end): the lessons that it shows, over the root of the mean of
    the clients' last sample variances, as logits; of two clusters over the root of 2, too."""
    last: dict[int, np.ndarray] = {}
    found = []
    for client, start, end in updates:
        last[client] = shown_lessons(first_models, start, end)
        usual = np.sqrt(np.mean([np.var(shown, ddof=1) for shown in last.values()]))
        odds = np.exp(last[client] / usual / (np.sqrt(2) if len(first_models) == 2 else 1))
        found.append(odds / odds.sum())
    return found
