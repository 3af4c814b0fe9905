"""The cores of this process, and torch in one thread."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0))


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums of this thread have the same bits on any machine with the same kind of CPU, and leave the other cores to
    training."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
