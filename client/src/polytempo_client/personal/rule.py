"""What a client keeps, whatever its rule, and the formulas of the rule ``jury``, the client's half of Concerto: what it
starts from, hands in and uses. The same code serves simulated and real clients. It is numpy over a ``score`` callback.

Under ``jury`` a client keeps its own model ``w`` and the average ``v`` of its own models. Its jury judges mixtures of
``v`` and the model ``g`` that the server sent."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from polytempo_client.personal.told import SETTLED, SOLO, TUTTI, JuryScores, Personal

if TYPE_CHECKING:  # rows are dealt by what a client remembers
    from polytempo_client.personal.jury import Rows

SHARES = (0.0, 0.25, 0.5, 1.0)
"""Shares x of the served model in the mixtures ``v + x (g - v)`` that the jury judges."""
KEEPING = 20.0
"""``beta = KEEPING d^2``: how much of its own a client keeps when its own is better by d."""
KEEPS_ALL = 1.0
"""The most that beta may be."""
TOO_LITTLE = 0.02
"""A smaller beta is 0."""
AVERAGING = 0.5
"""Share of the newest of its own models in the average."""
POOL_ROWS_KEEPING = 20
"""Rows that the pool counts for when a client decides how much to keep, ..."""
POOL_ROWS_USING = 60
"""... and when it decides what to use."""

FAR_WORSE = 3.0
"""A served model is far worse than a client's own if its Brier score is this many times as high."""
KEEPS_MUCH = 0.5
"""A client that keeps this share of its own or more in two tasks running rehearses in the second."""
REHEARSES = "rehearses"
"""The number in a client's memory that says so."""
ENOUGH_SOLO_TASKS = 3
"""Tasks running in which a client plays solo for good and its jury would use nothing but its own: then it is a
soloist."""
SOLO_TASKS = "solo_tasks"

NO_VECTOR = np.zeros(0, np.float32)

Score = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(weights, rows) -> for each row its error (0 or 1) and half its Brier score, each from 0 to 1."""


@dataclass(frozen=True, eq=False)
class ClientMemory:
    """What a client remembers from one task to the next. It never leaves the client."""

    own: np.ndarray = field(default_factory=lambda: NO_VECTOR)
    """The model that is its own: ``w``, mostly the one trained last; under ``ditto`` and ``apfl`` its personal one."""
    average: np.ndarray = field(default_factory=lambda: NO_VECTOR)
    """``v``, an average of its own models: ``v <- (v + w) / 2``. Other rules keep a vector of theirs here: ``apfl`` its
    local part v, ``fedala`` its weights W, ``ditto`` nothing."""
    known: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """Fingerprints of the rows that both were trained on, sorted."""
    numbers: dict[str, float] = field(default_factory=dict)
    """What else a rule remembers."""
    private: np.ndarray = field(default_factory=lambda: NO_VECTOR)
    """The private layers (``learn/private_layers.py``) of the model that it trained last, one behind the other."""

    @property
    def is_soloist(self) -> bool:
        """Does it go on from its own model alone, use nothing else and train on all rows, until new rows object?"""
        return self.numbers.get(SOLO_TASKS, 0) >= ENOUGH_SOLO_TASKS

    @property
    def nbytes(self) -> int:
        return self.own.nbytes + self.average.nbytes + self.known.nbytes + self.private.nbytes

    @property
    def is_finite(self) -> bool:
        """Are there neither NaN nor Inf among its numbers?"""
        numbers = (self.own.sum(), self.average.sum(), self.private.sum(), *self.numbers.values())
        return all(math.isfinite(number) for number in numbers)


def judge(
    memory: ClientMemory, served: np.ndarray, jury: np.ndarray, score: Score, changed: bool = False
) -> JuryScores:
    """What the jury says of the mixtures."""
    sums = [_judged(mixed(memory.average, served, share), jury, score) for share in SHARES]
    errors, briers = np.array(sums).T
    return JuryScores(len(jury), tuple(errors.tolist()), tuple(briers.tolist()), changed)


class Beginning(NamedTuple):
    """What a client decides before it trains."""

    beta: float = 0.0
    """The share of its own model in what it starts from."""
    rehearses: bool = False
    """It starts from the served model, and its jury decides afterwards whether what it trained becomes its own."""
    memory: ClientMemory | None = None
    """What it remembers, with what it counts: tasks that it has played solo, and whether it may rehearse next."""


def begin(memory: ClientMemory, scores: JuryScores, personal: Personal, chooses: bool) -> Beginning:
    """Decide what to start from. A client whose data have changed, or that ``chooses`` among models, starts from the
    served one. A soloist starts from its own as long as no row that is new to it prefers a mixture. One that plays
    solo for good counts the tasks running in which its jury would use nothing but its own. Others go by the rule. Where
    they would keep much of their own in two tasks running, and the served model is not far worse, the second is a
    rehearsal. So are the next ones as long as what they train becomes their own."""
    own_is_best = using(memory, scores, personal.pool) == 0
    if scores.changed or chooses:
        return Beginning(0.0, False, replace(memory, numbers={}))
    if memory.is_soloist and own_is_best:
        return Beginning(KEEPS_ALL, False, memory)
    beta, has_jury = keeping(scores, personal), scores.rows > 0
    numbers: dict[str, float] = {}
    if TUTTI in personal.parameters:
        # A soloist trains on the rows that judge it.
        rehearses = has_jury and not memory.is_soloist
        return Beginning(0.0, rehearses, replace(memory, numbers={REHEARSES: 1.0} if rehearses else numbers))
    if SETTLED in personal.parameters and beta == KEEPS_ALL and has_jury and own_is_best:
        numbers = {SOLO_TASKS: memory.numbers.get(SOLO_TASKS, 0) + 1}
    elif (
        SOLO not in personal.parameters and has_jury and beta >= KEEPS_MUCH and not is_far_worse(scores, personal.pool)
    ):
        numbers = {REHEARSES: 1.0}
    rehearses = REHEARSES in memory.numbers and REHEARSES in numbers
    return Beginning(0.0 if rehearses else beta, rehearses, replace(memory, numbers=numbers))


def may_rehearse(memory: ClientMemory, personal: Personal) -> bool:
    """Does the client rehearse, if its jury finds a reason to?"""
    return TUTTI in personal.parameters or (REHEARSES in memory.numbers and SOLO not in personal.parameters)


def keeping(scores: JuryScores, personal: Personal) -> float:
    """``beta``, the share of its own model in what a client starts from: ``20 d^2``, where d is by how much the served
    model's Brier score is worse than that of its own, the pool counting for 20 rows. A client that is to play solo
    keeps all where it would keep something."""
    rows, own, served = _own_and_served(scores, personal.pool)
    d = max((served - own) / rows, 0.0) if rows else 0.0
    beta = min(KEEPING * d * d, KEEPS_ALL)
    if beta < TOO_LITTLE:
        return 0.0
    return KEEPS_ALL if SOLO in personal.parameters else beta


def is_far_worse(scores: JuryScores, pool: JuryScores | None) -> bool:
    """Is the served model so bad that nobody has to try what comes of it?"""
    _, own, served = _own_and_served(scores, pool)
    return served >= FAR_WORSE * own


def using(memory: ClientMemory, scores: JuryScores, pool: JuryScores | None) -> float:
    """``x*``, the share of the served model in what a client uses: the one with the least sum of error and Brier score,
    the pool counting for 60 rows. Without jury and pool, and for a soloist without new rows, its own."""
    if memory.is_soloist and not scores.rows:
        return SHARES[0]
    _, sums = _with_pool(scores, pool, POOL_ROWS_USING, lambda of: np.add(of.errors, of.briers))
    return SHARES[int(np.argmin(sums))]


def mixed(one: np.ndarray, other: np.ndarray, share: float, where: np.ndarray | None = None) -> np.ndarray:
    """``one + share (other - one)``, exactly one of them at 0 and 1; outside of ``where`` the first."""
    if share == 0:
        return one
    if where is not None:
        return np.where(where, mixed(one, other, share), one)
    return other if share == 1 else one + np.float32(share) * (other - one)


def outgoing(trained: np.ndarray, start: np.ndarray, served: np.ndarray, parameters: int) -> np.ndarray:
    """What a client hands in: the served model plus its own progress, so that its own model does not leave it. Buffers
    go as they are: a sum could make a variance negative."""
    if start is served:
        return trained
    result = served + (trained - start)
    result[parameters:] = trained[parameters:]
    return result


def remembered(begun: Beginning, trained: np.ndarray, rows: "Rows", score: Score) -> ClientMemory:
    """What the client keeps of a training. Where its data had changed it started from the served model alone, and its
    history begins anew. After a rehearsal it keeps the better one of its own model and what it trained."""
    memory = begun.memory
    if memory is None or rows.changed:
        return ClientMemory(trained, trained, np.unique(rows.known))
    if begun.rehearses and _own_is_better(memory.own, trained, rows.jury, score):
        return replace(memory, numbers={})
    average, known = mixed(memory.average, trained, AVERAGING), np.union1d(memory.known, rows.known)
    return ClientMemory(trained, average, known, memory.numbers)


def _own_is_better(own: np.ndarray, trained: np.ndarray, jury: np.ndarray, score: Score) -> bool:
    return sum(_judged(own, jury, score)) < sum(_judged(trained, jury, score))


def _judged(weights: np.ndarray, jury: np.ndarray, score: Score) -> tuple[float, float]:
    """Errors and Brier scores, added up. A row for which the model computes no number is one that it gets wrong."""
    if not len(jury):
        return 0.0, 0.0
    rows = np.array(score(weights, jury), np.float64)
    rows[~np.isfinite(rows).all(1)] = 1.0
    errors, briers = rows.sum(0).tolist()
    return errors, briers


def _own_and_served(scores: JuryScores, pool: JuryScores | None) -> tuple[float, float, float]:
    """Rows, and sums of the Brier scores of its own and of the served model, the pool counting for 20 rows."""
    rows, (own, *_, served) = _with_pool(scores, pool, POOL_ROWS_KEEPING, lambda of: of.briers)
    return rows, own, served


def _with_pool(
    scores: JuryScores,
    pool: JuryScores | None,
    weight: int,
    column: Callable[[JuryScores], Sequence[float] | np.ndarray],
) -> tuple[float, np.ndarray]:
    """Rows and sums of a column, with the pool's mean for so many rows. Where the data have changed, the pool says
    nothing."""
    rows, sums = float(scores.rows), np.array(column(scores), np.float64)
    if pool is None or scores.changed:
        return rows, sums
    return rows + weight, sums + weight * np.array(column(pool)) / pool.rows
