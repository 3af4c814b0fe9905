"""The half of the Ray executor that runs in the processes of a cluster."""

import os
import sys
import traceback
from typing import NamedTuple

import numpy as np
import ray
import torch
from ray import cloudpickle

from polytempo.core.errors import PassingError
from polytempo.core.versions import machine
from polytempo.sim.executors.executor import Worker, computed
from polytempo.sim.executors.travel import Parcel, named, own_memory, pack, shared_memory, unpack


class Introduction(NamedTuple):
    """What a process says of itself before it is given work."""

    node: str
    process: int
    machine: dict[str, str]


class RemoteWorker:
    """A process with a worker of its own. If it dies, Ray makes it anew, and the driver lets it begin again."""

    def begin(self, path: list[str], worker: Parcel, names: list[str], *data: np.ndarray) -> Introduction:
        """Make the worker, which compiles what it has to compile. ``path`` is where the driver finds modules, ``data``
        are those that all workers share."""
        sys.path += [directory for directory in path if directory not in sys.path]
        torch.set_num_threads(1)
        self._data = {name: shared_memory(array) for name, array in zip(names, data, strict=True)}
        self._worker: Worker = unpack(worker, self._data)[0]
        return Introduction(_node(), os.getpid(), machine())

    def work(self, parcel: Parcel, names: list[str], *models: np.ndarray) -> Parcel:
        """Carry out some computations, one after the other. ``models`` are those of them that other calls hold, too."""
        known = self._data | {name: own_memory(array) for name, array in zip(names, models, strict=True)}
        computations, memory = unpack(parcel, known)
        done = [computed(self._worker, computation) for computation in computations]
        told = [one if one.error is None else one._replace(error=_told(one.error)) for one in done]
        return pack(told, known | named(memory))[0]


def _told(error: BaseException) -> BaseException:
    """The error as it can be raised elsewhere: with its stack in words."""
    stack = "".join(traceback.format_exception(error))
    if _is_out_of_memory(error):
        return PassingError(
            f"A worker on {_node()} ran out of memory. Take fewer workers per node or a smaller model, and start it "
            "again: it goes on from its last checkpoint."
        )
    try:
        told: BaseException = cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:  # what a user's code raises may be anything
        told = RuntimeError(f"{type(error).__name__}: {error}")
    told.add_note(f"In a worker on {_node()}:\n{stack}")
    return told


def _is_out_of_memory(error: BaseException) -> bool:
    """torch raises an error of no kind of its own."""
    return isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error)


def _node() -> str:
    return str(ray.util.get_node_ip_address())
