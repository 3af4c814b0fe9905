"""Named random streams. Every random number is drawn from (seed, purpose, keys), never from a shared generator, so
that no result depends on the order of execution."""

import hashlib

import numpy as np


def stream(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """The generator of one purpose, for example ``stream(seed, "batches", client, count)``."""
    name = repr((int(seed), purpose, *map(int, keys))).encode()
    key = np.frombuffer(hashlib.blake2b(name, digest_size=16).digest(), np.uint64)
    return np.random.Generator(np.random.Philox(key=key))
