"""Named random streams. Every random number is drawn from (seed, purpose, keys), never from a shared generator, so
that no result depends on the order of execution."""

from functools import lru_cache
from typing import Any

import numpy as np


def stream(seed: int, purpose: str, *keys: int) -> "np.random.Generator":
    """The generator of one purpose, for example ``stream(seed, "batches", client, count)``."""
    name = _seeding()(repr((int(seed), purpose, *map(int, keys))).encode())
    return np.random.Generator(np.random.PCG64DXSM(name))


@lru_cache(maxsize=1)
def _seeding() -> Any:
    """What seeds a generator with the hash of a name: ten times quicker than numpy's own seeding, which matters because
    every event of a simulation opens a stream or two. Made when it is first needed: a device that draws no random
    numbers does not wait for numpy's generators."""
    from hashlib import blake2b

    from numpy.random.bit_generator import ISeedSequence

    class Name(ISeedSequence):
        def __init__(self, name: bytes) -> None:
            self._name = name

        def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
            size = n_words * np.dtype(dtype).itemsize
            return np.frombuffer(blake2b(self._name, digest_size=size).digest(), dtype)

    return Name
