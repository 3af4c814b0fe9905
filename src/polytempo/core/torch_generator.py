"""torch's global random generator, which all threads of a process share."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def own_generator(seed: int | None = None) -> Iterator[None]:
    """The generator belongs to this thread for a while, with this seed or as it stands. Afterwards it is as before.
    Runs in other threads wait: what they draw would depend on what this one has drawn."""
    with _ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.manual_seed(seed)
        yield
