"""Two tests for a change of data: are the labels others, are the losses larger. Both are few lines over numpy; the test
suite compares them with scipy's."""

import math

import numpy as np


def p_other_shares(one: np.ndarray, other: np.ndarray) -> float:
    """Chi-squared test of two samples of labels: the probability of shares that differ so much by chance."""
    labels, places = np.unique(np.concatenate([one, other]), return_inverse=True)
    if len(labels) < 2 or not len(one) or not len(other):
        return 1.0
    parts = places[: len(one)], places[len(one) :]
    counts = np.array([np.bincount(part, minlength=len(labels)) for part in parts], np.float64)
    expected = np.outer(counts.sum(1), counts.sum(0)) / counts.sum()
    return chi_squared_tail(float((np.square(counts - expected) / expected).sum()), len(labels) - 1)


def p_larger(before: np.ndarray, now: np.ndarray) -> float:
    """One-sided Mann-Whitney test: the probability that ``now`` is so much larger by chance. NaN is as large as can
    be."""
    values = np.concatenate([before, now])
    values[np.isnan(values)] = np.inf
    if not len(before) or not len(now) or (values == values[0]).all():
        return 1.0
    _, places, ties = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(ties) - (ties - 1) / 2)[places]
    m, n, all_ = len(now), len(before), len(values)
    u = float(ranks[n:].sum()) - m * (m + 1) / 2
    tied = float((ties.astype(np.float64) ** 3 - ties).sum()) / (all_ * (all_ - 1))
    spread = math.sqrt(m * n / 12 * (all_ + 1 - tied))
    return math.erfc((u - m * n / 2 - 0.5) / spread / math.sqrt(2)) / 2  # 0.5: u is a whole number


def chi_squared_tail(x: float, freedom: int) -> float:
    """The probability that a chi-squared number with so many degrees of freedom is larger than x: a finite sum
    (Abramowitz and Stegun, 26.4.4 and 26.4.5). Its terms are added as exponentials of logarithms, since ``exp(-x/2)``
    may underflow where they do not."""
    half = x / 2
    if half <= 0:
        return 1.0
    first, tail = (0.5, math.erfc(math.sqrt(half))) if freedom % 2 else (0.0, 0.0)
    powers = (first + i for i in range(freedom // 2))
    return min(tail + sum(math.exp(k * math.log(half) - half - math.lgamma(k + 1)) for k in powers), 1.0)
