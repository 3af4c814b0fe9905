"""``polytempo join``: a client with data of its own that trains what the server orders, exactly as the simulator's
clients do. With the same seed, partition and tasks, a client that joins ends with the bits of its simulated twin."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polytempo.core.errors import UserError
from polytempo.core.events import Update
from polytempo.core.model.vectors import flatten, trained_entries
from polytempo.core.orders import Candidates, Objective, Send, Train, Work
from polytempo.core.threads import one_thread
from polytempo.learn.asking import Sample, sampled, watching
from polytempo.learn.learner import Assignment
from polytempo.learn.questions import questions
from polytempo.serve.client.own_data import JoinSettings, Local, OwnData, file_stamp, make_join_settings
from polytempo.serve.client.own_models import alone, as_personal, trained_alone, used
from polytempo.serve.client.private import check_asks_nothing, open_ledger, released
from polytempo.strategies.base.strategy import strategy_class
from polytempo.world.data import load_dataset
from polytempo_client.asking.policies import Asking, parse_asking, reason, wait
from polytempo_client.asking.waiting import wait_for_reason
from polytempo_client.client import Client
from polytempo_client.errors import RefusedError
from polytempo_client.keeping.own_memory import OwnMemory, Remembered
from polytempo_client.leaving import goodbye, until_spent
from polytempo_client.logs import log
from polytempo_client.model.schema import Schema
from polytempo_client.personal.rule import ClientMemory
from polytempo_client.protocol.tasks import Task, Tensors
from polytempo_client.updates.ledger import Ledger


@dataclass(frozen=True)
class Trained:
    """What a client did for one task, and how the model that it started from does on its own test rows."""

    task: int
    version: int
    steps: int
    seconds: float
    accuracy: float
    loss: float


def log_trained(trained: Trained) -> None:
    log("trained", **{name: round(value, 4) for name, value in asdict(trained).items()})


@until_spent()
def join(
    connect: Callable[[], Client],
    settings: JoinSettings | None = None,
    updates: int | None = None,
    progress: Callable[[Trained], None] = log_trained,
) -> None:
    """Take part until so many updates were pushed (default: for ever), then leave. A client that keeps its open task in
    a file just closes its session: whoever joins with this file goes on with the task. ``connect`` opens the session,
    after the data were read. ``progress`` is told of every training before its result is pushed."""
    settings = settings or make_join_settings()
    asking = None if settings.ask is None else parse_asking(settings.ask)
    ledger = open_ledger(settings, asking)
    if settings.strategy is not None:
        strategy_class(settings.strategy)
    stamp = file_stamp(settings.data)
    dataset = load_dataset(settings.data, settings.data_dir)
    client = connect()
    with one_thread(), client, goodbye(client):
        number, schema, seed = client.wait_for_welcome()
        own = OwnData(settings, dataset, number, seed, stamp)
        check_schema(own.learner.schema, schema)
        participant = Participant(own, asking, client.hold, progress, ledger, client.memory)
        try:
            # A refused update has left the client: with privacy, there are none to waste.
            refusals = None if ledger is None else 1
            last = client.run(participant.carry_out, updates, participant.pushed, refusals)
            if last is not None:
                participant.log_exchange(last)
        except RefusedError as error:
            raise UserError(
                f"The server refuses the updates of client {number}: {str(error).rstrip('.')}. If training diverges "
                "(NaN, Inf, too far from its start), lower --lr at the server; if its noise does, raise the bound."
            ) from None


def check_schema(own: Schema, server: Schema) -> None:
    """The client's model has to have the server's tensors, in whatever order."""
    ours, theirs = (dict(zip(s.names, s.shapes, strict=True)) for s in (own, server))
    for name in [*ours, *theirs]:
        if ours.get(name) != theirs.get(name):
            raise UserError(
                f"This client's model is not the server's: its tensor {name!r} {_shape(ours.get(name))}, the server's "
                f"{_shape(theirs.get(name))}. Use the server's --model and --personal-layers (head for fedper and "
                "fedrep, body for lg-fedavg), and data with the same inputs and classes."
            )
    if own.frozen != server.frozen:
        raise UserError(
            f"The frozen parts of this client's model are not the server's: {_fingerprint(own.frozen)} here, "
            f"{_fingerprint(server.frozen)} there. Use the server's --model, the same seed, and the same files or "
            "packages that the model loads its frozen weights from."
        )


def _shape(shape: tuple[int, ...] | None) -> str:
    return "is missing" if shape is None else f"has shape {list(shape)}"


def _fingerprint(frozen: str) -> str:
    return f"fingerprint {frozen[:12]}" if frozen else "none"


# What the client does.


class Participant:
    """What a client does with one task after the other: it holds each until it asks, then trains on its data as they
    are by then. ``hold`` waits as ``Client.hold`` does. With a ``ledger`` nothing leaves but privatised updates.
    ``memory`` is where its own models are."""

    def __init__(
        self,
        own: OwnData,
        asking: Asking | None,
        hold: Callable[[Task, float], bool],
        progress: Callable[[Trained], None] = log_trained,
        ledger: Ledger | None = None,
        memory: OwnMemory | None = None,
    ) -> None:
        self._own, self._asking, self._hold, self._progress, self._ledger = own, asking, hold, progress, ledger
        self._memory = OwnMemory() if memory is None else memory
        self._trained_on: Sample | None = None
        self._last: tuple[Local, float] | None = None
        """The data that it last trained on, and the accuracy that it came to on their test rows."""
        self._exchanging = False

    def carry_out(self, task: Task) -> tuple[Tensors, int, dict[str, Any]]:
        """What ``Client.run`` pushes."""
        self.log_exchange(task)
        if self._ledger is not None:
            self._ledger.check()
            check_asks_nothing(task)
        self._wait_until_it_asks(task)
        local, before = self._own.now(task.count), self._memory.as_of(task.answered)
        compared = self._compare(task, local, before) if self._own.shadow else None
        done = _train(task, local, self._progress, before)
        if done.update.steps:
            self._trained_on = _look(local, task, 0)
        self._last = local, _score(local, done.own)[0]
        remembers = done.order.personal is not None or done.memory is not None or compared is not None
        kept = {"kept": self._kept(done, local)} if remembers else {}
        if self._ledger is None:
            tensors, samples, more = _push_arguments(done, local)
            return tensors, samples, {**more, **kept, "compared": compared}
        # With privacy, nothing else: neither answers nor the choice among candidates nor scores, nor what a jury said.
        update, order, schema = done.update, done.order, local.learner.schema
        shown = released(task, update, trained_entries(schema, order.mask, order.trainable), self._ledger)
        return _upload(shown, order, schema), update.samples, {"steps": update.steps, **kept}

    def _compare(self, task: Task, local: Local, before: Remembered) -> tuple[float, float] | None:
        """How the model that the client works with now does on its own test rows, and the one that it trains alone."""
        served = _flat(task.held, local.learner.schema)
        models = (used(local, before.memory, served, task.personal), alone(before, self._own.initial))
        of_used, of_alone = (_score(local, model)[0] for model in models)
        log("compared", task=task.number, used=round(of_used, 4), alone=round(of_alone, 4))
        is_share = 0 <= of_used <= 1 and 0 <= of_alone <= 1  # a metric of one's own may be anything
        return (of_used, of_alone) if is_share else None

    def _kept(self, done: "_Done", local: Local) -> Remembered:
        """What the client remembers once the server has its result."""
        before = done.before if done.memory is None else done.before._replace(memory=done.memory)
        return trained_alone(done.order, local, before, self._own.initial) if self._own.shadow else before

    def pushed(self, task: Task) -> None:
        """The server has the result: the next task is the reply."""
        self._exchanging = True

    def log_exchange(self, task: Task) -> None:
        """What the client handed in and, if this task is the reply to it, what came back, on the data that it then
        had."""
        if self._exchanging and self._last is not None:
            local, before = self._last
            after, _ = _score(local, self._whole(task, local))
            log("exchange", task=task.number, version=task.version, before=round(before, 4), after=round(after, 4))
        self._exchanging = False

    def _whole(self, task: Task, local: Local) -> Tensor:
        """The model that the client holds, with its private layers."""
        memory = self._memory.as_of(task.answered).memory
        return local.learner.layers.whole(_flat(task.held, local.learner.schema), memory)

    def _wait_until_it_asks(self, task: Task) -> None:
        """Hold the task; no longer than the server lets it."""
        asking, own = self._asking, self._own
        if asking is None:
            return
        why = wait_for_reason(
            lambda looks: self._reason(asking, task, looks),
            lambda: self._hold(task, wait(asking, own.seed, own.client, task.count)),
            at_once=asking.watches and self._trained_on is None,
        )
        if why is not None:
            log("asks", task=task.number, why=why)

    def _reason(self, asking: Asking, task: Task, looks: int) -> str | None:
        own = self._own
        model = self._whole(task, own.now(task.count))
        now = _look(own.now(task.count), task, looks)
        return reason(asking, watching(own.learner.scorer, model), self._trained_on, now, looks)


def _look(local: Local, task: Task, looks: int) -> Sample:
    return sampled(local.x, local.y, local.train, local.seed, local.client, task.count, looks)


def carry_out(
    task: Task, local: Local, progress: Callable[[Trained], None] = log_trained
) -> tuple[Tensors, int, dict[str, Any]]:
    """Train at once; what ``Client.run`` pushes: the tensors that moved, the number of samples, and what goes with
    them."""
    return _push_arguments(_train(task, local, progress, Remembered()), local)


@dataclass(frozen=True)
class _Done:
    """A task that was carried out."""

    order: Train
    update: Update
    trained: Trained
    own: Tensor
    """The model that came of it."""
    before: Remembered
    memory: ClientMemory | None
    """What the client remembers of its own models from now on, if the task is personal."""


def _train(task: Task, local: Local, progress: Callable[[Trained], None], before: Remembered) -> _Done:
    began = time.perf_counter()
    schema = local.learner.schema
    order = order_of(task, local.client, schema)
    _check_questions(order.questions)
    steps = order.work.steps_for(len(local.train))
    listen = _listener(task, local.client, schema)
    assignment = Assignment(order, local.x, local.y, local.train, steps, task.count, local.seed, listen=listen)
    done = local.learner.carry_out(as_personal(assignment, local, before.memory))
    update = done.update
    seconds = time.perf_counter() - began
    accuracy, loss = _score(local, local.learner.layers.whole(update.start, before.memory))
    trained = Trained(task.number, update.version, update.steps, seconds, accuracy, loss)
    progress(trained)
    return _Done(order, update, trained, done.own, before, done.memory)


def _push_arguments(done: _Done, local: Local) -> tuple[Tensors, int, dict[str, Any]]:
    order, update, trained = done.order, done.update, done.trained
    more: dict[str, Any] = {"steps": update.steps, "chosen": update.chosen, "answers": update.answers}
    if update.jury is not None:
        more["jury"] = update.jury
    if 0 <= trained.accuracy <= 1 and math.isfinite(trained.loss):  # a metric of one's own may be anything
        more |= {"accuracy": trained.accuracy, "loss": trained.loss}
    return _upload(update.weights, order, local.learner.schema), update.samples, more


def order_of(task: Task, client: int, schema: Schema) -> Train:
    """The order that the server's strategy gave, out of the message that brought it."""
    ordered = task.ordered

    def extra(prefix: str) -> Tensor:
        return _flat({name: task.extras[prefix + name] for name in schema.names}, schema)

    def has(prefix: str) -> bool:
        return any(name.startswith(prefix) for name in task.extras)

    candidates = None
    if ordered.candidate_use:
        versions = tuple(ordered.candidate_versions)
        models = tuple(extra(f"candidate/{i}/") for i in range(len(versions)))
        candidates = Candidates(models, versions, ordered.candidate_use)  # type: ignore[arg-type]
    return Train(
        client,
        _flat(task.tensors, schema),
        task.version,
        Work(**asdict(task.work)),
        Objective(
            ordered.objective.proximal,
            ordered.objective.cosine,
            ordered.objective.l2,
            extra("anchor/") if has("anchor/") else None,
            extra("linear/") if has("linear/") else None,
        ),
        candidates,
        tuple(ordered.questions),
        extra("mask/").bool() if has("mask/") else None,
        tuple(ordered.trainable),
        personal=task.personal,
    )


def _flat(tensors: Tensors, schema: Schema) -> Tensor:
    return flatten(schema, {name: torch.from_numpy(array) for name, array in tensors.items()})


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
    trained = trained_entries(schema, order.mask, order.trainable)
    return {
        name: tensor.numpy()
        for name, tensor in schema.views(weights).items()
        if trained is None or trained[schema.spans[name]].any()
    }
