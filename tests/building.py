"""Small worlds for tests: a few clients with a few samples, and a simulator around any strategy."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polytempo.core.events import Update
from polytempo.core.orders import Work
from polytempo.core.vectors import Schema
from polytempo.learn.flat import initial_vector
from polytempo.learn.learner import Learner
from polytempo.sim.evaluation import Stop
from polytempo.sim.history import History
from polytempo.sim.simulator import Simulator
from polytempo.strategies import Setting, Strategy
from polytempo.strategies.parts.participation import EVERYONE, Quota
from polytempo.world.dataset import Dataset
from polytempo.world.devices import make_devices
from polytempo.world.partitions import make_federation


def vector(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float32)


def begun(strategy: Strategy, initial: Tensor, clients: int = 3, participation: Quota = EVERYONE) -> Strategy:
    """A strategy after ``begin``, with its clients joined; nobody is ready yet."""
    schema = Schema(("w",), (tuple(initial.shape),), len(initial))
    strategy.begin(Setting(initial, schema, participation=participation))
    for client in range(clients):
        strategy.joined(client, 0.0)
    return strategy


def update(client: int, version: int, start: Tensor, weights: Tensor, samples: int = 1) -> Update:
    return Update(client, version, start, weights, samples, steps=1)


def tiny_dataset(rows: int = 60, classes: int = 3) -> Dataset:
    rng = np.random.default_rng(0)
    y = np.arange(rows) % classes
    x = rng.normal(size=(rows, 4)).astype(np.float32)
    x[np.arange(rows), y] += 2.0
    return Dataset("tiny", x, y.astype(np.int64), classes, rows)


def simulator(
    strategy: Strategy,
    clients: int = 3,
    devices: str = "homogeneous",
    stop: Stop | None = None,
    work: Work | None = None,
    participation: Quota = EVERYONE,
    objects: Mapping[str, Any] | None = None,
    workers: int = 1,
    drifts: tuple[Any, ...] = (),
    engine: str = "eager",
) -> Simulator:
    """A simulator of a linear model (4 inputs, 3 classes) on 20 samples per client."""
    federation = make_federation(tiny_dataset(20 * clients), "iid", clients, seed=0, drifts=drifts)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 3))
    learner = Learner(module, engine)
    work = work or Work(steps=4, epochs=None, batch_size=4, lr=0.1)
    setting = Setting(initial_vector(module), learner.schema, work, participation, objects=objects or {})
    strategy.begin(setting)
    return Simulator(
        strategy,
        federation,
        make_devices(devices, clients, seed=0),
        learner,
        stop or Stop(updates=12),
        eval_every=6,
        seed=0,
        workers=workers,
        history=History(),
    )
