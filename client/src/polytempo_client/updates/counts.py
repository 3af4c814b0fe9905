"""Counts that a client hands in with an update, checked before they are sent."""

import operator
from typing import NamedTuple, SupportsIndex

from polytempo_client.errors import UserError
from polytempo_client.work import Work

MOST_COUNTED, MOST_CHOSEN = 2**64 - 1, 2**32 - 1
"""What the protocol can hold."""


class Counts(NamedTuple):
    samples: int
    steps: int
    chosen: int | None


def checked_counts(work: Work, samples: int, steps: int | None, chosen: int | None) -> Counts:
    """The counts of an update; the steps of the task where none are given."""
    samples = _whole("samples", samples, least=1)
    steps = work.steps_for(samples) if steps is None else _whole("steps", steps)
    return Counts(samples, steps, None if chosen is None else _whole("chosen", chosen, most=MOST_CHOSEN))


def _whole(name: str, value: SupportsIndex, least: int = 0, most: int = MOST_COUNTED) -> int:
    """A whole number within bounds."""
    try:
        count = operator.index(value)
    except TypeError:
        count = -1
    if not least <= count <= most:
        raise UserError(f"{name} is {value!r}. Expected a whole number from {least} to {most}.")
    return count
