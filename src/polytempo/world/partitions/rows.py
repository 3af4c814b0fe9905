"""Partitions as Python objects: the row numbers of each client in a list, or a function that makes such a list."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from polytempo.core.errors import UserError
from polytempo.core.given import described
from polytempo.world.federation import Federation
from polytempo.world.partitions.deals import Deal, PartitionRequest, offsets, split_locally
from polytempo_client.streams import stream

EXPECTED = "for each client an array of row numbers, or a pair of them: train rows and test rows"

Share = Callable[[np.ndarray, int, np.random.Generator], Sequence[Any]]
"""Labels of all rows, number of clients, random numbers -> the rows of each client."""


def from_rows(request: PartitionRequest, rows: Sequence[Any]) -> Federation:
    """Client i has the i-th rows: train and test rows as they are, or rows that it splits itself. Rows count through
    the data set's train part and then its test part."""
    if len(rows) < request.clients:
        raise UserError(f"{request.clients} clients were asked for, but partition has {len(rows)}. Take at most that.")
    rows = rows[: request.clients]
    paired = _is_pair(rows[0])
    if any(_is_pair(own) != paired for own in rows):
        raise UserError(f"partition has pairs of train and test rows for some clients only. Expected {EXPECTED}.")
    own = [[_numbers(part, client) for part in (given if paired else (given,))] for client, given in enumerate(rows)]
    _check_each_once(np.concatenate(list(chain(*own))), len(request.dataset))
    if not paired:
        owner = np.full(len(request.dataset), -1, np.int64)
        for client, (mine,) in enumerate(own):
            owner[mine] = client
        return split_locally(request, Deal(owner))
    for client, parts in enumerate(own):
        if not all(map(len, parts)) or sum(map(len, parts)) < request.min_samples:
            raise UserError(
                f"partition gives client {client} {len(parts[0])} train and {len(parts[1])} test rows. Expected at "
                f"least one of each, and together {request.min_samples} (min_samples)."
            )
    (train, train_off), (test, test_off) = (
        (np.concatenate(part), offsets(np.array(list(map(len, part))))) for part in zip(*own, strict=True)
    )
    return Federation(request.dataset, train, train_off, test, test_off)


def from_function(request: PartitionRequest, share: Share) -> Federation:
    """What the user's function makes of labels, number of clients and a generator of the run's seed."""
    rng = stream(request.seed, "partition of one's own")
    try:
        made = share(request.dataset.y, request.clients, rng)
        rows = list(made)
    except Exception as error:
        raise UserError(
            f"The function given as partition failed: {type(error).__name__}: {error}. Expected a function of (labels, "
            f"clients, random generator) that returns {EXPECTED}."
        ) from error
    return from_rows(request, rows)


def _is_pair(own: Any) -> bool:
    return isinstance(own, tuple) and len(own) == 2 and all(np.ndim(part) == 1 for part in own)


def _numbers(given: Any, client: int) -> np.ndarray:
    array = np.asarray(given)
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        raise UserError(f"partition gives client {client} {described(given)}. Expected {EXPECTED}.")
    return array.astype(np.int64)


def _check_each_once(rows: np.ndarray, known: int) -> None:
    if len(rows) and (rows.min() < 0 or rows.max() >= known):
        wrong = rows[(rows < 0) | (rows >= known)][0]
        raise UserError(f"partition names row {wrong}. The data set has rows 0 to {known - 1}.")
    found, times = np.unique(rows, return_counts=True)
    if (times > 1).any():
        raise UserError(
            f"partition gives row {found[times > 1][0]} out more than once. Every row may appear only once."
        )
