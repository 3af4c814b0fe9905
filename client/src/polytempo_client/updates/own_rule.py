"""The personal rule for a device with a training loop of its own: what it trains from, what it hands in, and what it
uses. The rule itself is ``personal/rule.py``; here it meets named tensors and the server's messages."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from polytempo_client.errors import UserError, VersionError
from polytempo_client.keeping.own_memory import OwnMemory, Remembered
from polytempo_client.model.schema import Schema
from polytempo_client.personal.jury import Rows, deal, fingerprints
from polytempo_client.personal.rule import (
    Beginning,
    ClientMemory,
    Score,
    begin,
    judge,
    mixed,
    outgoing,
    remembered,
    using,
)
from polytempo_client.personal.told import JuryScores, Personal
from polytempo_client.protocol.tasks import Model, Task, Tensors
from polytempo_client.updates.uploads import end_of, start_of, trained_by

SUM_TOLERANCE = 1e-3
"""By how much the sum of a row's probabilities may differ from 1."""

SCORE_TOLERANCE = 1e-6
"""By how much a score may lie outside of 0 to 1."""

NamedScore = Callable[[Tensors, np.ndarray], np.ndarray]
"""(tensors, rows) -> for each row its error (0 or 1) and half its Brier score (0 to 1): an array of two columns."""


class PersonalResult(NamedTuple):
    """The result of a task as it leaves the client, and what stays."""

    tensors: Tensors
    jury: JuryScores | None = None
    kept: Remembered | None = None


@dataclass(frozen=True)
class _Begun:
    """A task that the client has begun by the rule."""

    task: Task
    before: Remembered
    rows: Rows
    scores: JuryScores | None
    score: Score
    how: Beginning


class OwnRule:
    """One device's side of the rule. ``memory`` is where its own models are."""

    def __init__(self, memory: OwnMemory) -> None:
        self.memory = memory
        self._features, self._labels = np.zeros(0, np.uint64), np.zeros(0, np.uint64)
        self._key: int | None = None
        self._handed_out = np.zeros(0, np.int64)
        """Fingerprints of the rows that were handed out to train on."""
        self._begun: _Begun | None = None

    def deal(self, x: np.ndarray, y: np.ndarray, key: int, task: Task | None) -> np.ndarray:
        """The rows to train on, for this task or for any. The others are the jury."""
        if not len(x):
            raise UserError("deal(x, y) got no rows.")
        if len(x) != len(y):
            raise UserError(f"deal(x, y) needs a row of x for each label in y: x has {len(x)} rows, y {len(y)}.")
        # Of one type, since a row is known by its bytes.
        self._features, self._labels, self._key = fingerprints(np.asarray(x, np.float32)), fingerprints(y), key
        rows = self._dealt(None if task is None else self.memory.as_of(task.answered).memory)
        self._handed_out = rows.known
        return rows.train

    def start(self, task: Task, score: NamedScore, chosen: int | None, schema: Schema) -> np.ndarray:
        """What to train from. The jury judges the served model once per task, also if refreshes come."""
        served, personal = start_of(task, chosen, schema), task.personal
        if personal is None:
            return served
        _check_rule(personal)
        if self._begun is None or self._begun.task is not task:
            self._begun = self._begin(task, served, personal, _flat_score(score, schema), chosen)
        return np.array(self._started(self._begun, served, schema))  # to write into: the client's own stays as it is

    def result(self, task: Task, tensors: Tensors, chosen: int | None, schema: Schema) -> PersonalResult:
        """What leaves of a result, and what stays: after a rehearsal, what the jury prefers. A task that was not begun
        by the rule goes as it is."""
        begun = self._begun
        if begun is None or begun.task is not task:
            return PersonalResult(tensors)
        served = start_of(task, chosen, schema)
        start = self._started(begun, served, schema)
        end = end_of(tensors, start, trained_by(task, schema), schema)
        memory = begun.before.memory
        if np.isfinite(end).all():
            memory = remembered(begun.how, end, begun.rows, begun.score)
        out = schema.views(outgoing(end, start, served, schema.parameter_count))
        return PersonalResult({name: out[name] for name in tensors}, begun.scores, begun.before._replace(memory=memory))

    def used(self, model: Model, score: NamedScore, schema: Schema) -> Tensors:
        """The tensors to work with, of one's own and a model that was pulled."""
        memory, personal = self.memory.as_of(model.answered).memory, model.personal
        if personal is None or memory is None:
            return model.tensors
        _check_rule(personal)
        served, rows = schema.flatten(model.tensors), self._dealt(memory)
        scores = judge(memory, served, rows.jury, _flat_score(score, schema), rows.changed)
        return schema.views(np.array(mixed(memory.average, served, using(memory, scores, personal.pool))))

    def _begin(
        self,
        task: Task,
        served: np.ndarray,
        personal: Personal,
        score: Score,
        chosen: int | None,
    ) -> _Begun:
        before = self.memory.as_of(task.answered)
        rows = self._dealt(before.memory)._replace(known=self._handed_out)
        if before.memory is None:
            return _Begun(task, before, rows, None, score, Beginning())
        scores = judge(before.memory, served, rows.jury, score, rows.changed)
        how = begin(before.memory, scores, personal, chooses=chosen is not None)
        return _Begun(task, before, rows, scores if scores.rows else None, score, how)

    def _started(self, begun: _Begun, served: np.ndarray, schema: Schema) -> np.ndarray:
        memory = begun.before.memory
        return served if memory is None else mixed(served, memory.own, begun.how.beta, trained_by(begun.task, schema))

    def _dealt(self, memory: ClientMemory | None) -> Rows:
        if self._key is None:
            raise UserError("The server asks for a jury: call deal(x, y) with this client's own data first.")
        return deal(np.arange(len(self._features)), self._features, self._labels, self._key, memory)


def judged(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """What a ``score`` has to return, out of the classes' probabilities (a row per sample) and the labels."""
    shares, classes = np.asarray(probabilities, np.float64), np.asarray(labels)
    if shares.ndim != 2 or classes.shape != shares.shape[:1]:
        wanted = "judged(probabilities, labels) needs a row of probabilities for each label"
        raise UserError(f"{wanted}: their shapes are {shares.shape} and {classes.shape}.")
    unknown = classes[~np.isin(classes, np.arange(shares.shape[1]))]
    if len(unknown):
        known = f"there are probabilities for labels 0 to {shares.shape[1] - 1}"
        raise UserError(f"judged(probabilities, labels) got the label {unknown[0]}, and {known}.")
    if (np.abs(shares.sum(1) - 1) > SUM_TOLERANCE).any() or (shares < 0).any():
        raise UserError("judged(probabilities, labels) needs rows that add up to 1: take the softmax of outputs first.")
    classes = classes.astype(np.int64)
    errors = shares.argmax(1) != classes
    briers = (np.square(shares).sum(1) + 1) / 2 - shares[np.arange(len(classes)), classes]
    return np.stack([errors.astype(np.float64), briers], 1)


def _flat_score(score: NamedScore, schema: Schema) -> Score:
    def flat(weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
        scores = np.asarray(score(schema.views(weights), rows), np.float64)
        if scores.shape != (len(rows), 2):
            wanted = f"an error and half a Brier score for each of {len(rows)} rows"
            raise UserError(f"score(tensors, rows) has to return {wanted}: it returned the shape {scores.shape}.")
        if (np.abs(scores - 0.5) > 0.5 + SCORE_TOLERANCE).any():
            raise UserError("score(tensors, rows) has to return numbers from 0 to 1: an error and half a Brier score.")
        return scores

    return flat


def _check_rule(personal: Personal) -> None:
    if personal.rule != "jury":
        raise VersionError(
            f"The server's clients follow the rule {personal.rule!r}, which this client does not know. Install the "
            "server's version of Polytempo, or train from task.tensors without start()."
        )
