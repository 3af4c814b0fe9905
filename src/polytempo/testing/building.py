"""Small worlds for tests: a few clients with a few samples, and a simulator around any strategy."""

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from polytempo.core.events import Update
from polytempo.core.orders import Work
from polytempo.core.torch_generator import own_generator
from polytempo.learn.flat import initial_vector
from polytempo.learn.learner import Learner
from polytempo.learn.proxies import ProxySets
from polytempo.sim.executors.threads import Threads
from polytempo.sim.records.evaluation import Stop
from polytempo.sim.records.history import History
from polytempo.sim.simulator import Simulator
from polytempo.sim.uploads import Uploads
from polytempo.sim.world import World
from polytempo.strategies import Setting, Strategy
from polytempo.strategies.base.participation import EVERYONE, Quota
from polytempo.world.dataset import Dataset
from polytempo.world.devices import make_devices
from polytempo.world.partitions import make_federation
from polytempo.world.proxies import ProxyData
from polytempo_client.asking.policies import parse_asking
from polytempo_client.model.schema import Schema

S = TypeVar("S", bound=Strategy)


def vector(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float32)


def begun(
    strategy: S,
    initial: Tensor,
    clients: int = 3,
    participation: Quota = EVERYONE,
    objects: Mapping[str, Any] | None = None,
) -> S:
    """A strategy after ``begin``, with its clients joined; nobody is ready yet."""
    schema = Schema(("w",), (tuple(initial.shape),), len(initial))
    strategy.begin(Setting(initial, schema, participation=participation, objects=objects or {}))
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


class Planted:
    """Proxy sets on which the loss of w is its distance to a planted model of the cluster."""

    def __init__(self, *models: Tensor) -> None:
        self.models = models

    @property
    def clusters(self) -> int:
        return len(self.models)

    def specialised(self, weights: Tensor, epochs: int) -> list[Tensor]:
        return [model.clone() for model in self.models]

    def losses(self, weights: Tensor) -> np.ndarray:
        return np.array([self.loss(weights, k) for k in range(self.clusters)])

    def loss(self, weights: Tensor, cluster: int) -> float:
        return float((weights - self.models[cluster]).norm())


def tiny_proxies() -> ProxyData:
    """Two proxy sets of the samples of ``tiny_dataset``."""
    data = tiny_dataset(24)
    return ProxyData(data.x, data.y, np.array([0, 15, 24]), data.classes)


def two_layers(_: object = None) -> nn.Module:
    """A model with a body, ``0``, and a head, ``2``."""
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


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
    asking: str | None = None,
    partition: str = "iid",
    uploads: Uploads | None = None,
    personal_layers: tuple[str, ...] = (),
) -> Simulator:
    """A simulator of a linear model (4 inputs, 3 classes) on 20 samples per client; where layers are private, of one
    with a hidden layer of 5."""
    private = personal_layers or strategy.personal_layers
    federation = make_federation(tiny_dataset(20 * clients), partition, clients, seed=0, drifts=drifts)
    with own_generator(0):
        module = two_layers() if private else nn.Sequential(nn.Linear(4, 3))
    initial = initial_vector(module)
    learner = Learner(module, engine).with_private(private, initial)
    work = work or Work(steps=4, epochs=None, batch_size=4, lr=0.1)
    proxies = {} if private else {"proxies": ProxySets(learner, *tiny_proxies()[:3], work, seed=0)}
    given = {**proxies, **(objects or {})}
    setting = Setting(learner.layers.shared_of(initial), learner.schema, work, participation, objects=given)
    strategy.begin(setting)
    world = World(
        federation,
        make_devices(devices, clients, seed=0),
        learner,
        asking=None if asking is None else parse_asking(asking),
        uploads=uploads or Uploads(),
    )
    return Simulator(strategy, world, stop or Stop(updates=12), 6, Threads(world.worker(), workers), History())
