"""A partition by composition: what share of each client's data every label has, client by client."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from polytempo.core.errors import UserError
from polytempo.world.partitions.deals import Deal, PartitionRequest, deal
from polytempo.world.tables import apportioned


class Labels(NamedTuple):
    """The labels ``first`` to ``last``, each with this weight."""

    first: int
    last: int
    weight: float


Composition = tuple[Labels, ...]


def parse(text: str) -> tuple[Composition, ...]:
    """``0-3/0*1,1*3``: clients separated by ``/``, labels or ranges of labels by commas, weights behind ``*``."""
    return tuple(tuple(_labels(word) for word in client.split(",")) for client in text.split("/"))


def composition(request: PartitionRequest, compositions: Sequence[Composition]) -> Deal:
    """Client i gets the labels in the shares of the i-th composition. All clients get equally many samples, as many as
    the scarcest label allows. Clients of the same composition are a true group, if there are others."""
    if request.clients != len(compositions):
        raise UserError(
            f"The partition composition describes {len(compositions)} clients, and {request.clients} were asked for. "
            "Leave the number of clients out, or describe as many, separated by /."
        )
    shares = np.stack([_shares(one, client, request) for client, one in enumerate(compositions)])
    counts = _equal_counts(shares, np.bincount(request.dataset.y, minlength=request.dataset.classes))
    return Deal(deal(request.dataset.y, counts, request.rng), _groups(shares))


def _labels(word: str) -> Labels:
    labels, starred, weight = word.partition("*")
    first, ranged, last = labels.partition("-")
    found = Labels(int(first), int(last if ranged else first), float(weight) if starred else 1.0)
    if not 0 <= found.first <= found.last or not 0 < found.weight < math.inf:
        raise ValueError
    return found


def _shares(labels: Composition, client: int, request: PartitionRequest) -> np.ndarray:
    """The share of each label of the data set; they sum to 1."""
    weights = np.zeros(request.dataset.classes)
    for first, last, weight in labels:
        if last >= len(weights):
            raise UserError(
                f"The partition composition gives client {client} label {last}. "
                f"The labels of {request.dataset.name} are numbered 0 to {len(weights) - 1}."
            )
        if weights[first : last + 1].any():
            twice = first + int(np.flatnonzero(weights[first : last + 1])[0])
            raise UserError(
                f"The partition composition gives client {client} label {twice} twice. Give it once, with a weight."
            )
        weights[first : last + 1] = weight
    weights /= weights.max()  # the sum of huge weights would be infinite
    return weights / weights.sum()


def _equal_counts(shares: np.ndarray, available: np.ndarray) -> np.ndarray:
    """Clients x labels: the same total for every client, as large as the labels that are available allow."""
    wanted = shares.sum(axis=0)
    total = int((available[wanted > 0] / wanted[wanted > 0]).min())
    while True:
        counts = np.stack([apportioned(total, row) for row in shares])
        if (counts.sum(axis=0) <= available).all():
            return counts
        total -= 1  # rounding took a few samples too many of the scarcest label


def _groups(shares: np.ndarray) -> np.ndarray | None:
    """Numbered in the order in which they first appear."""
    numbers: dict[tuple[float, ...], int] = {}
    groups = [numbers.setdefault(tuple(row), len(numbers)) for row in np.round(shares, 9).tolist()]
    return np.array(groups) if len(numbers) > 1 else None
