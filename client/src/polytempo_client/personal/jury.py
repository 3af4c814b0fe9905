"""A client's jury: the tenth of its rows that it does not train on, to judge models by.

Whether a row is a juror is a keyed hash of its features. So a row that comes later, or leaves and comes back, keeps its
part, and two equal rows have the same part. A soloist uses nothing but its own model. It needs no jury and trains on
all rows; new ones judge it once, before it trains on them. When most rows are new, it has a jury among them again."""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from polytempo_client.personal.rule import ClientMemory
from polytempo_client.streams import stream

ONE_IN = 10
"""One row in ten is a juror."""
MOST_NEW = 60
"""Rows that judge at most where a client's data have changed, chosen by their fingerprints. To judge takes time."""
CHUNK_BYTES = 1 << 24
_ODD = np.uint64(0x9E3779B97F4A7C15)


class Rows(NamedTuple):
    """What a client does with the rows that it has."""

    train: np.ndarray
    jury: np.ndarray
    """Rows that its models were never trained on."""
    known: np.ndarray
    """Fingerprints of ``train``, with their labels."""
    changed: bool
    """Most rows are new to its models: the client's data have changed."""


def fingerprints(x: np.ndarray) -> np.ndarray:
    """One 64-bit hash per row of its bytes: a sum of products with fixed odd numbers, mixed."""
    flat = np.ascontiguousarray(x).reshape(len(x), -1)
    words = -(-flat.shape[1] * flat.itemsize // 8)
    found = [(lanes * _factors(words)).sum(1, dtype=np.uint64) for lanes in _lanes(flat, words)]
    return _mixed(np.concatenate(found)) if found else np.zeros(0, np.uint64)


def jury_key(seed: int, client: int) -> int:
    """What makes one client's jury differ from another's."""
    return int(stream(seed, "jury", client).integers(2**63))


def deal(rows: np.ndarray, x: np.ndarray, y: np.ndarray, key: int, memory: ClientMemory | None) -> Rows:
    """Deal a client's rows to training and jury. ``x`` and ``y`` are fingerprints of their features and labels. If all
    rows would be jurors, all are trained on."""
    solo, known = (False, np.zeros(0, np.int64)) if memory is None else (memory.is_soloist, memory.known)
    whole = _mixed(x + _ODD * y).view(np.int64)
    new = ~_among(whole, known)
    changed = len(known) > 0 and 2 * int(np.count_nonzero(new)) > len(rows)
    jurors = _mixed(x ^ np.uint64(key)) % np.uint64(ONE_IN) == 0
    if solo:
        jurors &= new & changed
    if jurors.all():
        jurors = np.zeros(len(rows), bool)
    judging = np.flatnonzero(new if changed or solo else jurors & new)
    if changed and len(judging) > MOST_NEW:
        judging = np.sort(judging[np.argsort(whole[judging], kind="stable")[:MOST_NEW]])
    return Rows(rows[~jurors], rows[judging], whole[~jurors], changed)


@lru_cache
def _factors(words: int) -> np.ndarray:
    factors = stream(0, "row fingerprints").integers(1, 2**63, words, np.uint64) | np.uint64(1)
    factors.setflags(write=False)
    return factors


def _lanes(flat: np.ndarray, words: int) -> Iterator[np.ndarray]:
    """The rows as 64-bit words, padded with zeros, some at a time."""
    at_once = max(1, CHUNK_BYTES // max(8 * words, 1))
    for begin in range(0, len(flat), at_once):
        part = flat[begin : begin + at_once]
        padded = np.zeros((len(part), 8 * words), np.uint8)
        padded[:, : part.shape[1] * part.itemsize] = part.view(np.uint8).reshape(len(part), -1)
        yield padded.view(np.uint64)


def _among(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Which values are among the known ones, which are sorted."""
    if not len(known):
        return np.zeros(len(values), bool)
    at = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return known[at] == values


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Every bit of the result depends on every bit of the number (splitmix64's last steps)."""
    z = numbers.astype(np.uint64, copy=True)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
