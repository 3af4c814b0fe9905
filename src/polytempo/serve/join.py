"""``polytempo join``: a client with data of its own that trains what the server orders, exactly as the simulator's
clients do. With the same seed, partition and tasks, a client that joins ends with the bits of its simulated twin."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor

from polytempo.core.errors import UserError
from polytempo.core.orders import Candidates, Objective, Send, Train
from polytempo.core.validation import refusal
from polytempo.core.vectors import Schema
from polytempo.learn.learner import Assignment, Learner, make_learner
from polytempo.learn.models import Inputs
from polytempo.learn.questions import questions
from polytempo.serve.client import Client, Task, Tensors
from polytempo.serve.connection import RefusedError
from polytempo.serve.logs import log
from polytempo.strategies.strategy import strategy_class
from polytempo.world.data import load_dataset
from polytempo.world.dataset import Dataset
from polytempo.world.federation import Federation
from polytempo.world.partitions import clients_in, make_federation

GOODBYE_SECONDS = 2.0


class JoinSettings(BaseModel):
    """A client's own data and model. Without ``partition`` all of the data are its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    data: str = Field("digits", description="name of a data set, a file, a folder or an import path")
    data_dir: Path | None = Field(None, description="where data sets lie")
    partition: str | None = Field(None, description="take only this client's share of the data, dealt out like this")
    clients: int | None = Field(None, ge=1, description="how many clients the data are dealt out to")
    test_share: float = Field(0.2, gt=0, lt=1, description="share of the client's samples kept for its own test")
    min_samples: int = Field(2, ge=2, description="samples that every client must have")
    seed: int | None = Field(None, ge=0, description="of everything random (default: the server's)")
    model: str = Field("mlp", description="name of a model, or the import path of your own")
    loss: str | None = Field(None, description="import path of a loss (outputs, labels) -> number")
    metric: str | None = Field(None, description="import path of a metric (outputs, labels) -> number per sample")
    engine: Literal["auto", "eager", "fused"] = Field("auto", description="how local training is computed")
    strategy: str | None = Field(None, description="import path of the server's own strategy, for questions it brings")

    @model_validator(mode="after")
    def _consistent(self) -> "JoinSettings":
        if self.clients is not None and self.partition is None:
            raise ValueError("clients belongs to partition: give both, or neither if all of the data are this client's")
        return self


def make_join_settings(**given: Any) -> JoinSettings:
    """Settings from keyword arguments; a wrong name or value is an error in plain words."""
    try:
        return JoinSettings(**given)
    except ValidationError as error:
        raise refusal(error, "Join") from None


@dataclass(frozen=True)
class Trained:
    """What a client did for one task, and how the model that it started from does on its own test rows."""

    task: int
    version: int
    steps: int
    seconds: float
    accuracy: float
    loss: float


@dataclass(frozen=True)
class Local:
    """Everything that a client trains with."""

    client: int
    seed: int
    learner: Learner
    x: Tensor
    y: Tensor
    train: np.ndarray
    test: np.ndarray


def log_trained(trained: Trained) -> None:
    log("trained", **{name: round(value, 4) for name, value in asdict(trained).items()})


def join(
    address: str,
    token: str | Path,
    ca: str | Path | None = None,
    *,
    insecure: bool = False,
    settings: JoinSettings | None = None,
    updates: int | None = None,
    progress: Callable[[Trained], None] = log_trained,
) -> None:
    """Take part until so many updates were pushed (default: for ever), then leave. ``progress`` is told of every
    training before its result is pushed."""
    settings = settings or make_join_settings()
    if settings.strategy is not None:
        strategy_class(settings.strategy)
    dataset = load_dataset(settings.data, settings.data_dir)
    with _one_thread(), Client(address, token, ca, insecure=insecure) as client, _goodbye(client):
        number, schema, seed = client.wait_for_welcome()
        local = make_local(settings, dataset, number, seed)
        check_schema(local.learner.schema, schema)
        try:
            client.run(lambda task: carry_out(task, local, progress), updates)
        except RefusedError as error:
            raise UserError(
                f"The server refuses the updates of client {number}: {error}. If training diverges (NaN, Inf, too far "
                "from its start), lower --lr at the server."
            ) from None


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums have the same bits as in the simulator."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _goodbye(client: Client) -> Iterator[None]:
    """Leave at the end, whatever the reason, unless the server cannot be told."""
    try:
        yield
    finally:
        with suppress(UserError, TimeoutError):
            client.leave(GOODBYE_SECONDS)


# What the client has.


def make_local(settings: JoinSettings, dataset: Dataset, client: int, server_seed: int) -> Local:
    """The rows, the model and the learner that the simulator would give to this client."""
    seed = server_seed if settings.seed is None else settings.seed
    federation = _federation(settings, dataset, seed)
    data = federation.client(_place(settings, federation, client))
    inputs = Inputs(dataset.x.shape[1:], dataset.classes, dataset.vocabulary)
    s, probe = settings, federation.dataset.samples_to_try()
    learner, _ = make_learner(s.model, inputs, seed, s.engine, s.loss, s.metric, probe)
    return Local(
        client,
        seed,
        learner,
        torch.from_numpy(federation.dataset.x),
        torch.from_numpy(data.y),
        data.train,
        data.test,
    )


def _federation(settings: JoinSettings, dataset: Dataset, seed: int) -> Federation:
    partition, clients = settings.partition, settings.clients
    if partition is None:
        partition, clients = "iid", 1
    clients = clients or clients_in(partition, dataset, settings.min_samples)
    if clients is None:
        raise UserError(f"Partition {partition!r} needs the number of clients that the data are dealt to: --clients N.")
    return make_federation(dataset, partition, clients, seed, settings.test_share, settings.min_samples)


def _place(settings: JoinSettings, federation: Federation, client: int) -> int:
    """Which share of the federation is this client's."""
    if settings.partition is None:
        return 0
    if client >= len(federation):
        raise UserError(
            f"This is client {client}, and the data are dealt to clients 0 to {len(federation) - 1}: raise --clients."
        )
    return client


def check_schema(own: Schema, server: Schema) -> None:
    """The client's model has to have the server's tensors, in whatever order."""
    ours, theirs = (dict(zip(s.names, s.shapes, strict=True)) for s in (own, server))
    for name in [*ours, *theirs]:
        if ours.get(name) != theirs.get(name):
            raise UserError(
                f"This client's model is not the server's: its tensor {name!r} {_shape(ours.get(name))}, the server's "
                f"{_shape(theirs.get(name))}. Use the server's --model, and data with the same inputs and classes."
            )


def _shape(shape: tuple[int, ...] | None) -> str:
    return "is missing" if shape is None else f"has shape {list(shape)}"


# What the client does.


def carry_out(
    task: Task, local: Local, progress: Callable[[Trained], None] = log_trained
) -> tuple[Tensors, int, dict[str, Any]]:
    """Train; what ``Client.run`` pushes: the tensors that moved, the number of samples, and what goes with them."""
    began = time.perf_counter()
    schema = local.learner.schema
    order = order_of(task, local.client, schema)
    _check_questions(order.questions)
    samples = len(local.train)
    steps = order.work.steps_for(samples)
    listen = _listener(task, local.client, schema)
    outcome = local.learner.carry_out(
        Assignment(order, local.x, local.y, local.train, steps, task.count, local.seed, listen=listen)
    )
    seconds = time.perf_counter() - began
    accuracy, loss = _score(local, outcome.start)
    progress(Trained(task.number, outcome.version, outcome.steps, seconds, accuracy, loss))
    more = {"steps": outcome.steps, "chosen": outcome.chosen, "answers": outcome.answers}
    return _upload(outcome.weights, order, schema), samples, more


def order_of(task: Task, client: int, schema: Schema) -> Train:
    """The order that the server's strategy gave, out of the message that brought it."""
    said = task.ordered

    def extra(prefix: str) -> Tensor:
        return _flat({name: task.extras[prefix + name] for name in schema.names}, schema)

    def has(prefix: str) -> bool:
        return any(name.startswith(prefix) for name in task.extras)

    candidates = None
    if said.candidate_use:
        versions = tuple(said.candidate_versions)
        models = tuple(extra(f"candidate/{i}/") for i in range(len(versions)))
        candidates = Candidates(models, versions, said.candidate_use)  # type: ignore[arg-type]
    return Train(
        client,
        _flat(task.tensors, schema),
        task.version,
        task.work,
        Objective(
            said.objective.proximal,
            said.objective.cosine,
            said.objective.l2,
            extra("anchor/") if has("anchor/") else None,
            extra("linear/") if has("linear/") else None,
        ),
        candidates,
        tuple(said.questions),
        extra("mask/").bool() if has("mask/") else None,
        tuple(said.trainable),
    )


def _flat(tensors: Tensors, schema: Schema) -> Tensor:
    return schema.flatten({name: torch.from_numpy(array) for name, array in tensors.items()})


def _check_questions(asked: Sequence[str]) -> None:
    for name in asked:
        if name not in questions:
            raise UserError(
                f"The server asks {name!r}, a question that this client does not know. Known: {', '.join(questions)}. "
                "A method of one's own that brings its own question is needed here too: --strategy file.py:Class."
            )


def _listener(task: Task, client: int, schema: Schema) -> Callable[[int], Sequence[Send] | None]:
    """What reaches the training: refreshes first, then the order to stop."""

    def listen(_: int) -> Sequence[Send] | None:
        if task.withdrawn:
            return None
        models = task.refreshes()
        if not models and task.reported:
            return None
        return [Send(client, _flat(model.tensors, schema), model.version, model.rebase) for model in models]

    return listen


def _score(local: Local, weights: Tensor) -> tuple[float, float]:
    """Metric and loss on the client's own test rows."""
    scorer, labels = local.learner.scorer, local.y[torch.from_numpy(local.test)]
    accuracy = scorer.metric(weights, local.x, labels, local.test).mean()
    return float(accuracy), float(scorer.losses(weights, local.x, labels, local.test).mean())


def _upload(weights: Tensor, order: Train, schema: Schema) -> dict[str, np.ndarray]:
    trained = schema.trained(order.mask, order.trainable)
    return {
        name: tensor.numpy()
        for name, tensor in schema.views(weights).items()
        if trained is None or trained[schema.spans[name]].any()
    }
