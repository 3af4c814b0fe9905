"""What a client that joins has: its settings, and its data as they are now. They are read again when the user's own
file or folder changes, and drawn anew where clients' mixtures drift."""

import logging
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from polytempo.core.errors import UserError
from polytempo.core.validation import LAYERS, validated
from polytempo.learn.learner import Learner, make_learner
from polytempo.learn.models import Inputs
from polytempo.strategies.settings import PERSONAL_LAYERS
from polytempo.world.data import datasets, load_dataset
from polytempo.world.data.sources import expanded
from polytempo.world.dataset import Dataset
from polytempo.world.drift import Drift
from polytempo.world.federation import Federation
from polytempo.world.partitions import clients_or_refusal, make_federation
from polytempo_client.logs import log
from polytempo_client.privacy import MOST_NOISE, Privacy


class JoinSettings(BaseModel):
    """A client's own data and model. Without ``partition`` all of the data are its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    data: str = Field("digits", description="name of a data set, a file, a folder or an import path")
    data_dir: Path | None = Field(None, description="where data sets lie")
    partition: str | None = Field(None, description="take only this client's share of the data, dealt out like this")
    clients: int | None = Field(None, ge=1, description="how many clients the data are dealt out to")
    test_share: float = Field(0.2, gt=0, lt=1, description="share of the client's samples kept for its own test")
    min_samples: int = Field(2, ge=2, description="samples that every client must have")
    proxies: int = Field(0, ge=0, description="samples of each cluster that are the server's and no client's")
    drift_every: int | None = Field(
        None, ge=1, description="after so many updates of its own the client draws a new mixture of clusters"
    )
    seed: int | None = Field(None, ge=0, description="of everything random (default: the server's)")
    model: str = Field("mlp", description="name of a model, or the import path of your own")
    personal_layers: Annotated[tuple[str, ...], LAYERS] = Field((), description=PERSONAL_LAYERS)
    loss: str | None = Field(None, description="import path of a loss (outputs, labels) -> number")
    metric: str | None = Field(None, description="import path of a metric (outputs, labels) -> number per sample")
    engine: Literal["auto", "eager", "fused"] = Field("auto", description="how local training is computed")
    ask: str | None = Field(
        None, description="when the client trains the model that it holds and asks for a newer one (default: at once)"
    )
    strategy: str | None = Field(None, description="import path of the server's own strategy, for questions it brings")
    shadow: bool = Field(
        False, description="also train a model alone, and tell the operator how it does beside the one in use"
    )
    clip_norm: float | None = Field(None, gt=0, description="privacy: updates are clipped to this length")
    noise: float | None = Field(
        None, gt=0, le=MOST_NOISE, description="privacy: noise on every number of an update, times the clip norm"
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="privacy: probability that the accounted epsilon does not hold")
    epsilon: float | None = Field(None, gt=0, description="privacy: leave before the update that would exceed this")
    ledger: Path | None = Field(None, description="privacy: the file that counts this client's updates")
    new_ledger: bool = Field(False, description="privacy: begin the file, for data of which nothing has left yet")

    @model_validator(mode="after")
    def _consistent(self) -> "JoinSettings":
        if self.clients is not None and self.partition is None:
            raise ValueError("clients belongs to partition: give both, or neither if all of the data are this client's")
        if self.partition is None and (self.proxies or self.drift_every):
            raise ValueError(
                "proxies and drift_every belong to a partition: without one all of the data are the client's"
            )
        if (self.clip_norm is None) != (self.noise is None):
            raise ValueError("privacy takes both clip_norm and noise: give both, or neither")
        if self.shadow and self.noise is not None:
            raise ValueError("shadow tells the server accuracies, and with privacy only noisy updates leave: give one")
        for name in ("delta", "epsilon", "ledger"):
            if name in self.model_fields_set and self.noise is None:
                raise ValueError(f"{name} belongs to privacy: give clip_norm and noise too")
        if (self.epsilon is not None or self.new_ledger) and self.ledger is None:
            raise ValueError("epsilon and new_ledger need a ledger: a limit that ends with the process is none")
        return self

    @property
    def privacy(self) -> Privacy | None:
        """How updates are blurred; None if they are not."""
        if self.clip_norm is None or self.noise is None:
            return None
        return Privacy(self.clip_norm, self.noise, self.delta)


def make_join_settings(**given: Any) -> JoinSettings:
    """Settings from keyword arguments; a wrong name or value is an error in plain words."""
    return validated(JoinSettings, given, "Join")


@dataclass(frozen=True)
class Local:
    """Everything that a client trains with, at one moment."""

    client: int
    seed: int
    learner: Learner
    x: Tensor
    y: Tensor
    train: np.ndarray
    test: np.ndarray


class OwnData:
    """A client's data. ``dataset`` is what ``settings.data`` held when its files bore this ``stamp``."""

    def __init__(
        self,
        settings: JoinSettings,
        dataset: Dataset,
        client: int,
        server_seed: int,
        stamp: object = None,
    ) -> None:
        self.client, self.seed = client, server_seed if settings.seed is None else settings.seed
        self.shadow = settings.shadow
        self._settings, self._stamp = settings, stamp
        self._federation = _federation(settings, dataset, self.seed)
        self._share = _share(settings, self._federation, client)
        self._inputs = Inputs(dataset.x.shape[1:], dataset.classes, dataset.vocabulary)
        s, probe = settings, self._federation.dataset.samples_to_try()
        learner, self.initial = make_learner(s.model, self._inputs, self.seed, s.engine, s.loss, s.metric, probe)
        self.learner = learner.with_private(s.personal_layers, self.initial)

    def now(self, count: int = 0) -> Local:
        """The rows that the client has in its count-th task (from 0), of its files as they are."""
        self._keep_up()
        every = self._settings.drift_every
        data = self._federation.client(self._share, 0 if every is None else count // every)
        x = torch.from_numpy(self._federation.dataset.x)
        return Local(self.client, self.seed, self.learner, x, torch.from_numpy(data.y), data.train, data.test)

    def _keep_up(self) -> None:
        """Read files that have changed. Where that fails the client goes on with what it has: somebody may just be
        writing them, and then they change again."""
        stamp = file_stamp(self._settings.data)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            dataset = load_dataset(self._settings.data, self._settings.data_dir)
            if Inputs(dataset.x.shape[1:], dataset.classes, dataset.vocabulary) != self._inputs:
                raise UserError("They have other inputs or classes than when the client began.")
            federation = _federation(self._settings, dataset, self.seed)
            self._share, self._federation = _share(self._settings, federation, self.client), federation
        except (UserError, OSError) as error:
            log("data not read", level=logging.WARNING, data=self._settings.data, reason=str(error))
        else:
            log("data read again", data=self._settings.data, samples=len(dataset))


def make_local(settings: JoinSettings, dataset: Dataset, client: int, server_seed: int) -> Local:
    """The rows, the model and the learner that the simulator would give to this client."""
    return OwnData(settings, dataset, client, server_seed, file_stamp(settings.data)).now()


def file_stamp(data: str) -> object:
    """Changes when the user's own file, or a file in the user's own folder, does; None for other data."""
    if data in datasets:
        return None
    path = expanded(Path(data))
    found = []
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        with suppress(OSError):  # it may vanish meanwhile, or be no file but an import path
            stat = file.stat()
            found.append((str(file), stat.st_mtime_ns, stat.st_size))
    return found or None


def _federation(settings: JoinSettings, dataset: Dataset, seed: int) -> Federation:
    s, partition, clients = settings, settings.partition, settings.clients
    if partition is None:
        partition, clients = "iid", 1
    clients = clients_or_refusal(partition, dataset, clients, s.min_samples)
    drifts = () if s.drift_every is None else (Drift(kind="mixture", after=s.drift_every, every=s.drift_every),)
    federation = make_federation(dataset, partition, clients, seed, s.test_share, s.min_samples, drifts, s.proxies)
    if drifts and federation.pools is None:
        raise UserError(
            f"Partition {partition!r} mixes no clusters, so there is no new mixture to draw: leave --drift-every out, "
            "or take a rotations partition."
        )
    return federation


def _share(settings: JoinSettings, federation: Federation, client: int) -> int:
    """Which share of the federation is this client's."""
    if settings.partition is None:
        return 0
    if client >= len(federation):
        raise UserError(
            f"This is client {client}, and the data are dealt to clients 0 to {len(federation) - 1}: raise --clients."
        )
    return client
