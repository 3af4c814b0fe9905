"""Echo: when a cluster's fresh model is worth sending to all its members (EchoPFL, section 5.2). After every
aggregation a policy compares what the model has changed since the last broadcast with what single aggregations
change."""

from collections import deque
from itertools import chain, zip_longest
from typing import Literal

import numpy as np
from torch import Tensor

from polytempo.core.model.rows import l1
from polytempo.core.stateful import Attributes, stateful
from polytempo.strategies.parts.echo_predictor import LAST, Predictor

TINY = float(np.finfo(float).tiny)
"""A model that has not changed at all is not sent."""
Policy = Literal["accumulated", "eq4", "rnn", "always", "never"]


@stateful
class Echo(Attributes):
    """What one cluster's broadcasts are decided from."""

    def __init__(self, model: Tensor, predictor: Predictor | None = None) -> None:
        self.broadcast = model
        """The model that was last broadcast, or that the cluster began with."""
        self.changes: deque[float] = deque(maxlen=LAST)
        """How much each of the last aggregations changed the model, ``||v_t - v_{t-1}||_1``."""
        self.accumulated = 0.0
        """How far the model is from the one that was last broadcast."""
        self.predictor = predictor

    def record(self, model: Tensor, change: float) -> None:
        """An aggregation changed the model to this one, by so much."""
        if self.predictor is not None:
            self.predictor.learn(change)
        self.changes.append(change)
        self.accumulated = l1(model, self.broadcast)

    def decide(self, policy: Policy, rho: float) -> bool:
        """Decide whether to broadcast now. ``accumulated``: if the accumulated change is at least rho times the mean of
        the last ones. ``eq4``: if it is at least the last one, which stands for the next (Eq. 4). ``rnn``: if the
        predictor says that it will be at least the next one."""
        if policy == "accumulated":
            return self.accumulated >= max(rho * float(np.mean(self.changes)), TINY)
        if policy == "eq4":
            return self.accumulated >= max(self.changes[-1], TINY)
        if policy == "rnn":
            assert self.predictor is not None
            return self.predictor.judge(self.changes, self.accumulated)
        return policy == "always"

    def mark_sent(self, model: Tensor) -> None:
        """The model was broadcast."""
        self.broadcast, self.accumulated = model, 0.0

    def expanded(self, model: Tensor) -> "Echo":
        """That of a cluster which was expanded out of this one: the same predictor, and no record."""
        return Echo(model, None if self.predictor is None else self.predictor.copy())

    def merged(self, other: "Echo", model: Tensor) -> "Echo":
        """That of two clusters which became one: the last changes of both in turn, the newest last, and the mean of the
        predictors."""
        unknown = self.predictor is None or other.predictor is None
        made = Echo(model, None if unknown else self.predictor.mean(other.predictor))  # type: ignore[union-attr,arg-type]
        newest_first = chain.from_iterable(zip_longest(reversed(self.changes), reversed(other.changes)))
        made.changes.extend([change for change in newest_first if change is not None][:LAST][::-1])
        return made
