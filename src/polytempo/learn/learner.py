"""The client's half: carry out one Train order on local data. The same for simulated and for real clients."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from polytempo.core.errors import UserError
from polytempo.core.events import Update
from polytempo.core.flight import base_of
from polytempo.core.model.frozen import frozen_parts
from polytempo.core.model.vectors import schema_of, trained_entries
from polytempo.core.orders import Objective, Send, Train, Work
from polytempo.core.schedules import rate_at
from polytempo.learn.eager import Loss
from polytempo.learn.engines import make_engine
from polytempo.learn.flat import initial_vector
from polytempo.learn.goals import Goal, goals, loss_by_name
from polytempo.learn.job import Batches, Job, Refresh, make_batches
from polytempo.learn.metrics import ACCURACY, Metric, PerSample, as_metric, metric_by_name
from polytempo.learn.models import Inputs, first_model
from polytempo.learn.private_layers import PrivateLayers
from polytempo.learn.probe import check_parts
from polytempo.learn.questions import Asked, questions
from polytempo.learn.rules import begin_rule
from polytempo.learn.scoring import Scorer
from polytempo_client.model.schema import Schema
from polytempo_client.personal.jury import Rows
from polytempo_client.personal.rule import SHARES, ClientMemory, may_rehearse
from polytempo_client.streams import stream

FORWARD = 1 / 3
"""Of a training step is the forward pass; the backward pass is the rest."""


@dataclass(frozen=True)
class Assignment:
    """A Train order with everything that decides its result."""

    order: Train
    x: Tensor
    y: Tensor
    rows: np.ndarray
    """The client's training rows, its jury not among them."""
    steps: int
    """Steps to do: the order's, or fewer when the client was told to report."""
    count: int
    """How many orders this client carried out before."""
    seed: int
    sends: tuple[tuple[int, Send], ...] = ()
    """Refreshes, each with the number of steps done when it arrived."""
    listen: Callable[[int], Sequence[Send] | None] | None = None
    """Instead of ``sends``, for a client in real time: what arrives during training, asked for as ``Job.listen``."""
    dealt: Rows | None = None
    """Where the rule of the order has a jury: how the client's rows were dealt to training and jury."""
    memory: ClientMemory | None = None
    """What the client remembers of its own models; None if it has none yet."""

    def tensors(self) -> list[Tensor]:
        """Those that assignments of other clients may hold as well."""
        return [*self.order.tensors(), *(send.weights for _, send in self.sends), self.y]


class CarriedOut(NamedTuple):
    """What comes of an assignment: what the client hands in, and what it keeps."""

    update: Update
    own: Tensor
    """The model that the client trained, its private layers included: what it hands in may be another."""
    memory: ClientMemory | None = None
    """Where the order is personal or layers are private; None: nothing new (training diverged)."""


def _made_again(
    module: nn.Module,
    engine: str,
    loss: Loss,
    metric: Metric | PerSample,
    probe: tuple[Tensor, Tensor] | None,
    device: str,
    layers: PrivateLayers,
) -> "Learner":
    return _with_layers(Learner(module, engine, loss, metric, probe, device), layers)


def _with_layers(learner: "Learner", layers: PrivateLayers) -> "Learner":
    learner.layers = layers
    return learner


@dataclass(frozen=True)
class _Choice:
    """What a client decides before it trains."""

    objective: Objective
    candidate: int | None = None
    """The one it starts from, where it has to choose."""
    answers: dict[str, Any] = field(default_factory=dict)


class Learner:
    """Trains and scores one model architecture; may be called from several threads at once. With ``probe``, a few
    samples and their labels (best with the largest label among them), model, loss and metric are tried out first."""

    def __init__(
        self,
        module: nn.Module,
        engine: str = "auto",
        loss: Loss = F.cross_entropy,
        metric: Metric | PerSample = ACCURACY,
        probe: tuple[Tensor, Tensor] | None = None,
        device: str = "cpu",
    ) -> None:
        self._made_of = module, engine, loss, metric, probe, device
        self.layers = PrivateLayers(schema_of(module))
        self._normalises_batches = any(
            isinstance(part, _BatchNorm) for part in set(module.modules()) - set(frozen_parts(module))
        )
        self.engine = make_engine(engine, module, loss, device)
        self.metric = as_metric(metric)
        self.scorer = Scorer(module, loss, self.metric, self.engine.outputs)
        if probe is not None:
            x, y = probe
            check_parts(module, loss, self.metric.per_sample, x, y)
            # No steps, but what has to be compiled is compiled now and not on the clock of a run.
            no_steps = make_batches(np.arange(len(y)), 1, 0, stream(0, "probe"))
            self.engine.train(Job(initial_vector(module), x, y, no_steps, Work(), lr=0.0))

    @property
    def schema(self) -> Schema:
        """Names and shapes of what travels between a server and its clients."""
        return self.layers.shared

    def with_private(self, names: Sequence[str], initial: Tensor) -> "Learner":
        """The same learner for clients that keep these layers. ``initial`` are the weights that the model begins
        with."""
        return _with_layers(copy.copy(self), PrivateLayers(self.layers.model, names, initial))

    def __copy__(self) -> "Learner":
        """One that shares its engine."""
        made = object.__new__(Learner)
        vars(made).update(vars(self))
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """A learner travels as what it was made of. Who takes it in another process makes and compiles its own."""
        return _made_again, (*self._made_of, self.layers)

    def carry_out(self, a: Assignment) -> CarriedOut:
        """What the client hands in and keeps. Questions are answered only where the trained weights are finite."""
        a = self.layers.at_client(a)
        order = a.order
        choice = self._choose(a)
        base = base_of(order, choice.candidate)
        assert base is not None
        rule = begin_rule(self, a, base.weights, choice.candidate)
        received = _Received(a, rule.start)
        keys = order.work.stream_keys(order.client, a.count)
        weights = rule.train(
            Job(
                rule.start(base.weights),
                a.x,
                a.y,
                self.batches(a.rows, order.work, a.steps, stream(a.seed, "batches", *keys)),
                order.work,
                rate_at(order.work.lr, a.count),
                rule.anchored(choice.objective, base.weights),
                trained_entries(self.layers.model, order.mask, order.trainable),
                tuple(Refresh(step, rule.start(send.weights), send.rebase) for step, send in a.sends),
                int(stream(a.seed, "model dropout", *keys).integers(2**31)),
                self.layers.private,
                None if a.listen is None else received.listen,
            )
        )
        base = base_of(order, choice.candidate, received.last)
        assert base is not None
        answers = choice.answers
        if order.questions and is_finite(weights):
            asked = Asked(self.scorer, a.x, a.y[torch.from_numpy(a.rows)], a.rows, base.weights, weights)
            answers |= {name: _plain(questions[name](asked)) for name in order.questions}
        update = Update(
            order.client,
            base.version,
            base.weights,
            rule.outgoing(weights, base.weights),
            len(a.rows),
            received.steps,
            choice.candidate,
            answers,
            jury=rule.scores,
        )
        memory = None
        if is_finite(weights):
            memory = self.layers.kept(rule.remembered(weights, received.steps), weights)
        if memory is not None and not memory.is_finite:
            memory = None
        own = update.weights if memory is None or not len(memory.own) else torch.from_numpy(memory.own)
        return CarriedOut(self.layers.shared_update(update), own, memory)

    def batches(self, rows: np.ndarray, work: Work, steps: int, rng: np.random.Generator) -> Batches:
        """Batches that the model can be trained on: one that normalises batches is given none of a single sample."""
        return make_batches(rows, work.batch_size, steps, rng, singles=not self._normalises_batches)

    def _choose(self, a: Assignment) -> _Choice:
        """What the client makes of the candidates that the order offers, if it offers some."""
        order, offered = a.order, a.order.candidates
        if offered is None:
            return _Choice(order.objective)
        y = a.y[torch.from_numpy(a.rows)]
        losses = torch.stack([self.scorer.losses(model, a.x, y, a.rows) for model in offered.models])
        answers: dict[str, Any] = {"losses": losses.mean(1).tolist()}
        if offered.use == "best":
            return _Choice(order.objective, int(losses.mean(1).argmin()), answers)
        shares = torch.bincount(losses.argmin(0), minlength=len(losses)).float() / losses.shape[1]
        answers["shares"] = shares.tolist()
        anchor = torch.einsum("k,kd->d", shares, torch.stack(offered.models))
        return _Choice(replace(order.objective, anchor=anchor), None, answers)


def forward_steps(order: Train, rows: int, dealt: Rows | None = None, memory: ClientMemory | None = None) -> float:
    """What a client's forward passes beside training cost, in training steps: those of candidates over the rows that it
    trains on, those of questions over as many of these as they look at, those of mixtures over its jury's rows. Where
    the client may rehearse, which its jury decides, its own model and the one that it trains are judged, too."""
    candidates = 0 if order.candidates is None else len(order.candidates.models)
    passed = candidates * rows + sum(questions[name].rows_of(rows) for name in order.questions)
    if order.personal is not None and dealt is not None and memory is not None:
        rehearsal = 2 if may_rehearse(memory, order.personal) and not dealt.changed else 0
        passed += (len(SHARES) + rehearsal) * len(dealt.jury)
    return FORWARD * passed / order.work.batch_size


class _Received:
    """What reaches a client during an assignment: the last model sent to it, and how far it got."""

    def __init__(self, assignment: Assignment, start: Callable[[Tensor], Tensor]) -> None:
        self._start = start
        self.last = assignment.sends[-1][1] if assignment.sends else None
        self.steps = assignment.steps
        """Steps really done: fewer than assigned when the client was told to stop while it listened."""
        self._listen = assignment.listen

    def listen(self, done: int) -> list[Refresh] | None:
        """Pass on to the engine what arrives."""
        assert self._listen is not None
        sends = self._listen(done)
        if sends is None:
            self.steps = done
            return None
        if sends:
            self.last = sends[-1]
        return [Refresh(done, self._start(send.weights), send.rebase) for send in sends]


def is_finite(weights: Tensor) -> bool:
    """Are all entries finite? A sum is NaN or infinite as soon as one of its terms is, and costs one pass without a
    temporary."""
    return math.isfinite(float(weights.sum()))


def make_learner(
    model: str,
    inputs: Inputs,
    seed: int,
    engine: str = "auto",
    loss: str | None = None,
    metric: str | None = None,
    probe: tuple[np.ndarray, np.ndarray] | None = None,
    own: Mapping[str, Any] | None = None,
    goal: Goal = goals["classification"],
    device: str = "cpu",
) -> tuple[Learner, Tensor]:
    """A learner for a model by name and, where they are not those of the goal, loss and metric by name; and the weights
    that the model begins with. ``own``: model, loss and metric that are given as objects."""
    own = own or {}
    module = first_model(model, inputs, seed, own.get("model"))
    loss_of = own.get("loss") or (goal.loss if loss is None else loss_by_name(loss))
    metric_of = own.get("metric") or (goal.metric if metric is None else metric_by_name(metric))
    if metric_of is ACCURACY and goal.labels != "classes":
        raise UserError(
            f"metric is accuracy, and labels of the goal {goal.name} are no classes. Take {goal.metric.name}."
        )
    samples = None if probe is None else (torch.from_numpy(probe[0]), torch.from_numpy(probe[1]))
    return Learner(module, engine, loss_of, metric_of, samples, device), initial_vector(module)


def _plain(answer: Any) -> Any:
    """numpy's numbers as Python's, which can be saved."""
    if isinstance(answer, np.generic):
        return answer.item()
    if isinstance(answer, dict):
        return {_plain(key): _plain(value) for key, value in answer.items()}
    if isinstance(answer, list):
        return [_plain(value) for value in answer]
    if isinstance(answer, tuple):
        return tuple(_plain(value) for value in answer)
    return answer
