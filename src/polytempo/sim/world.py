"""The world of an experiment: its clients with their data, devices and habits, and what the server has of its own."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polytempo.core.errors import UserError
from polytempo.learn.flat import read_vector
from polytempo.learn.learner import Learner, make_learner
from polytempo.learn.models import Inputs
from polytempo.learn.proxies import WARM_UP_EPOCHS, ProxySets
from polytempo.sim.executors.work import SharedWorker
from polytempo.sim.experiment import Experiment
from polytempo.sim.uploads import Uploads
from polytempo.strategies import Strategy
from polytempo.world.data import load_dataset
from polytempo.world.dataset import Dataset
from polytempo.world.devices import Devices, devices_with, make_devices
from polytempo.world.federation import Federation
from polytempo.world.partitions import clients_in, make_federation
from polytempo.world.partitions.validation import keep_validation
from polytempo.world.proxies import check_proxies, proxies_of, read_proxies
from polytempo_client.asking.policies import Asking
from polytempo_client.personal.jury import fingerprints
from polytempo_client.streams import stream

CLIENTS = 20
"""Where neither the user nor the partition says how many."""


@dataclass(frozen=True, eq=False)
class World:
    """Everything that a strategy is simulated in. It stays as it is during a run, but for what clients have not sent
    yet (``uploads``)."""

    federation: Federation
    devices: Devices
    learner: Learner
    seed: int = 0
    asking: Asking | None = None
    """When clients train and ask for a newer model; None: at once."""
    uploads: Uploads = field(default_factory=Uploads)
    sample: np.ndarray | None = None
    """The clients that are evaluated, by number and in order; None: all."""

    @cached_property
    def x(self) -> Tensor:
        """Features of the whole data set."""
        return torch.from_numpy(self.federation.dataset.x)

    def worker(self) -> SharedWorker:
        """What carries out the jobs of this world's clients."""
        return SharedWorker(self.learner, self.x, torch.from_numpy(self.federation.dataset.y))

    @cached_property
    def fingerprints(self) -> np.ndarray:
        """Of every row's features."""
        return fingerprints(self.federation.dataset.x)


def make_world(experiment: Experiment, strategy: Strategy) -> tuple[World, Tensor]:
    """The world that the settings describe for a strategy, and the weights that its model begins with."""
    e, behaviour = experiment, experiment.behaviour
    goal = e.aim()
    dataset = e.own("data") or load_dataset(e.data, e.data_dir, goal.labels)
    if dataset.has_classes != (goal.labels == "classes"):
        kind = "classes" if dataset.has_classes else "numbers"
        raise UserError(f"The labels of {e.data} are {kind}, which do not fit the goal {goal.name}.")
    federation = _federation(e, strategy, dataset)
    clients, seconds = len(federation), e.own("devices")
    devices = make_devices(e.devices, clients, e.seed) if seconds is None else devices_with(seconds, clients, e.seed)
    uploads = behaviour.uploads(clients, e.seed, strategy.travels)
    if behaviour.attack is not None:
        devices = devices.with_faster(uploads.attackers, behaviour.attack.faster)
    inputs = inputs_of(dataset)
    probe = federation.dataset.samples_to_try()
    own = {setting: e.own(setting) for setting in ("model", "loss", "metric")}
    learner, initial = make_learner(e.model, inputs, e.seed, e.engine, e.loss, e.metric, probe, own, goal)
    if e.init is not None:
        initial = read_vector(e.init, learner.schema.size)
    learner = learner.with_private(e.personal_layers or strategy.personal_layers, initial)
    world = World(
        federation, devices, learner, e.seed, behaviour.asking, uploads, drawn(e.eval_clients, clients, e.seed)
    )
    return world, learner.layers.shared_of(initial)


def drawn(wanted: int | None, clients: int, seed: int) -> np.ndarray | None:
    """So many of the clients, at random; None where these are all."""
    if wanted is None or wanted >= clients:
        return None
    return np.sort(stream(seed, "evaluated clients").choice(clients, wanted, replace=False))


def inputs_of(dataset: Dataset) -> Inputs:
    """What a model for this data set is built for."""
    return Inputs(dataset.x.shape[1:], dataset.classes, dataset.vocabulary)


def _federation(experiment: Experiment, strategy: Strategy, dataset: Dataset) -> Federation:
    """The clients with their data. Proxy sets are set aside where they are asked for, or where the strategy needs some
    and no file has them."""
    e, proxies, seconds = experiment, experiment.proxy_source, experiment.own("devices")
    if proxies is None:
        proxies = "default" if strategy.needs_proxies else 0
    partition = e.own("partition") or e.partition
    usual = CLIENTS if seconds is None else len(seconds)
    federation = make_federation(
        dataset,
        partition,
        e.clients or clients_in(partition, dataset, e.min_samples) or usual,
        e.seed,
        e.test_share,
        e.min_samples,
        e.drift,
        proxies if isinstance(proxies, int | str) else 0,
    )
    return keep_validation(federation, e.validation_share, e.seed)


def proxy_sets_of(experiment: Experiment, world: World) -> ProxySets | None:
    """The server's proxy sets: from a file, or what the federation set aside; None if it has none."""
    file, dataset = experiment.proxy_file, world.federation.dataset
    if file is not None:
        data = read_proxies(file)
        check_proxies(data, dataset.x.shape[1:], dataset.classes, dataset.vocabulary)
    elif world.federation.clusters:
        data = proxies_of(world.federation)
    else:
        return None
    return ProxySets(world.learner, data.x, data.y, data.offsets, experiment.work(), experiment.seed)


def begun_with(
    experiment: Experiment, proxies: ProxySets | None, initial: Tensor, objects: Mapping[str, Any]
) -> tuple[Tensor, dict[str, Any]]:
    """The first model, warmed up on the proxy sets where there are some, and what the strategy is handed."""
    if proxies is None:
        if experiment.warm_up:
            raise UserError("warm_up trains the first model on proxy sets, and there are none. Give --proxies too.")
        return initial, dict(objects)
    return proxies.warmed(initial, warm_up(experiment)), {"proxies": proxies, **objects}


def warm_up(experiment: Experiment) -> int:
    """Epochs that the first model is trained on the proxy sets, where there are some."""
    return WARM_UP_EPOCHS if experiment.warm_up is None else experiment.warm_up
