"""What is set aside for the server before clients get their data: a proxy set for each cluster, and test rows.

A cluster is one of the true groups that the partition planted; without such groups all clients are one cluster.
"""

from dataclasses import replace

import numpy as np

from polytempo.core.errors import UserError
from polytempo.world.federation import Cluster, Federation
from polytempo.world.partitions.deals import Proxies, offsets
from polytempo.world.tables import apportioned
from polytempo_client.streams import stream

DEFAULT_ROWS, DEFAULT_SHARE = 500, 0.2
TEST_ROWS = 2000
"""At most so many rows to test a cluster's model on."""


def aside_stream(seed: int) -> np.random.Generator:
    """The stream that decides which rows are set aside, from its beginning."""
    return stream(seed, "set aside")


def proxy_rows(asked: Proxies, train_rows: int, possible: int) -> int:
    """How many rows each cluster sets aside, if the smallest trains on ``train_rows`` and can spare ``possible``. The
    default is 500, or a fifth of the train rows where that is less."""
    default = max(1, min(DEFAULT_ROWS, int(train_rows * DEFAULT_SHARE), possible))
    rows = default if asked == "default" else asked
    if rows > possible:
        advice = f"Take at most {possible}." if possible else "Take more data or fewer clients."
        raise UserError(
            f"A proxy set of {rows} samples cannot be set aside for every cluster: the smallest has {possible} train "
            f"samples to spare beyond what its clients need. {advice}"
        )
    return rows


def set_aside(federation: Federation, proxies: Proxies, min_samples: int, seed: int) -> Federation:
    """Take each cluster's proxy set out of its clients' train rows, in proportion to their sizes. Each client keeps at
    least one, and all that it needs for the minimum of samples."""
    sizes, tests = np.diff(federation.train_off), np.diff(federation.test_off)
    holder = np.repeat(np.arange(len(federation)), sizes)
    rank = np.arange(len(holder)) - np.repeat(federation.train_off[:-1], sizes)
    spare = rank >= np.maximum(min_samples - tests, 1)[holder]
    groups = np.zeros(len(federation), np.int64) if federation.groups is None else federation.groups
    clusters = int(groups.max()) + 1
    train_rows = np.bincount(groups, sizes, clusters).astype(np.int64)
    possible = np.bincount(groups[holder], spare, clusters).astype(np.int64)
    rows = proxy_rows(proxies, int(train_rows.min()), int(possible.min()))

    rng, labels = aside_stream(seed), federation.dataset.y[federation.train_idx]
    tester = groups[np.repeat(np.arange(len(federation)), tests)]
    taken = np.zeros(len(holder), bool)
    made = []
    for cluster in range(clusters):
        inside = groups[holder] == cluster
        shares = np.bincount(labels[inside], minlength=federation.dataset.classes)
        places = stratified(np.flatnonzero(inside & spare), labels, rows, shares, rng)
        taken[places] = True
        test = federation.test_idx[tester == cluster]
        made.append(Cluster(federation.train_idx[places], evenly(test, min(TEST_ROWS, len(test)), rng)))
    kept = sizes - np.bincount(holder[taken], minlength=len(federation))
    return replace(federation, train_idx=federation.train_idx[~taken], train_off=offsets(kept), clusters=tuple(made))


def stratified(rows: np.ndarray, y: np.ndarray, size: int, shares: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """``size`` of the rows, the labels in these shares as far as there are enough rows of each; within a label evenly
    from the first row to the last, so that whoever holds more of it gives more."""
    labels = y[rows]
    counts = _within(size, shares, np.bincount(labels, minlength=len(shares)))
    return np.concatenate([evenly(rows[labels == label], int(counts[label]), rng) for label in np.flatnonzero(counts)])


def evenly(rows: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """So many of the rows, at equal distances."""
    return rows[(rng.integers(len(rows)) + np.arange(count) * len(rows)) // count]


def _within(total: int, shares: np.ndarray, available: np.ndarray) -> np.ndarray:
    """Whole numbers in these shares that sum to the total, none larger than what is available; what a scarce label
    lacks goes to the others."""
    counts = np.zeros(len(shares), np.int64)
    while missing := total - int(counts.sum()):
        room = available - counts
        counts += np.minimum(apportioned(missing, np.where(room > 0, shares, 0)), room)
    return counts
