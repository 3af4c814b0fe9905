"""Named random streams. Every random number is drawn from (seed, purpose, keys), never from a shared generator, so
that no result depends on the order of execution."""

import hashlib
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence


def stream(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """The generator of one purpose, for example ``stream(seed, "batches", client, count)``."""
    name: Any = _Name(seed, purpose, keys)  # numpy's stubs do not admit its own ISeedSequence
    return np.random.Generator(np.random.PCG64DXSM(name))


class _Name(ISeedSequence):
    """Seeds a generator with the hash of a name: ten times quicker than numpy's own seeding, which matters because
    every event of a simulation opens a stream or two."""

    def __init__(self, seed: int, purpose: str, keys: tuple[int, ...]) -> None:
        self._name = repr((int(seed), purpose, *map(int, keys))).encode()

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        size = n_words * np.dtype(dtype).itemsize
        return np.frombuffer(hashlib.blake2b(self._name, digest_size=size).digest(), dtype)
