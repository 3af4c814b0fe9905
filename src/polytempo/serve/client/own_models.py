"""The models of a client that joins with data of its own: those of the personal rule, and the one that it trains alone
beside them (``join --shadow``)."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from polytempo.core.model.vectors import tensor_of
from polytempo.core.orders import Train
from polytempo.learn.learner import Assignment, is_finite
from polytempo.learn.rules import rule_of
from polytempo.serve.client.own_data import Local
from polytempo_client.keeping.own_memory import Remembered
from polytempo_client.personal.jury import Rows, deal, fingerprints, jury_key
from polytempo_client.personal.rule import ClientMemory, judge
from polytempo_client.personal.told import JuryScores, Personal


def dealt(local: Local, memory: ClientMemory | None) -> Rows:
    """How the client deals its rows to training and jury, as its simulated twin does."""
    rows = torch.from_numpy(local.train)
    features, labels = fingerprints(local.x[rows].numpy()), fingerprints(local.y[rows].numpy())
    return deal(local.train, features, labels, jury_key(local.seed, local.client), memory)


def as_personal(assignment: Assignment, local: Local, memory: ClientMemory | None) -> Assignment:
    """The same assignment, with what the client needs for an order that is personal, or for its private layers."""
    assignment = replace(assignment, memory=memory)
    if not rule_of(assignment.order.personal).has_jury:
        return assignment
    rows = dealt(local, memory)
    steps = assignment.order.work.steps_for(len(rows.train))
    return replace(assignment, rows=rows.train, steps=steps, dealt=rows)


def used(local: Local, memory: ClientMemory | None, served: Tensor, personal: Personal | None) -> Tensor:
    """The model that the client works with when it is served these shared layers."""
    whole = local.learner.layers.whole(served, memory)
    if personal is None or memory is None:
        return whole

    def score(weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return local.learner.scorer.judged(tensor_of(weights), local.x, local.y[torch.from_numpy(rows)], rows)

    def judged() -> JuryScores:
        rows = dealt(local, memory)
        return judge(memory, whole.numpy(), rows.jury, score, rows.changed)

    return tensor_of(rule_of(personal).used(memory, whole.numpy(), personal, judged))


def alone(before: Remembered, initial: Tensor) -> Tensor:
    """The model that the client has trained alone so far."""
    return initial if before.alone is None else tensor_of(before.alone)


def trained_alone(order: Train, local: Local, before: Remembered, initial: Tensor) -> Remembered:
    """Train it on, with the work of this order: as the method standalone would, on all training rows. A training that
    diverges is left out."""
    start = Train(local.client, alone(before, initial), before.rounds, order.work)
    steps = order.work.steps_for(len(local.train))
    own = Assignment(start, local.x, local.y, local.train, steps, before.rounds, local.seed)
    learner = local.learner.with_private((), initial)  # alone, nothing travels
    weights = learner.carry_out(own).update.weights
    return before._replace(alone=weights.numpy() if is_finite(weights) else before.alone, rounds=before.rounds + 1)
