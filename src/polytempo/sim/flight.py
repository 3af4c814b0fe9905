"""The words of the simulator: kinds of events, and a training under way."""

import math
from dataclasses import dataclass, field
from enum import IntEnum

import torch
from torch import Tensor

from polytempo.core.events import Update
from polytempo.core.orders import Send, Train
from polytempo.core.state import stateful
from polytempo.learn.learner import Assignment, Outcome
from polytempo.world.federation import ClientData


class Kind(IntEnum):
    """Kinds of events; at equal times they come in this order (arrivals before timers)."""

    DRIFT = 0
    JOIN = 1
    ARRIVAL = 2
    LOSS = 3
    DELIVERY = 4
    WAKE = 5
    PULL = 6
    TIMER = 7
    ASK = 8


@stateful
@dataclass
class Flight:
    """One client's training between dispatch and arrival."""

    ticket: int
    order: Train
    count: int
    generation: int
    dispatched: float
    begins: float
    """When its first step begins, after the download; infinite while the client holds the order."""
    step_seconds: float
    steps: int
    upload_bytes: int
    sends: list[tuple[int, Send]] = field(default_factory=list)
    lost: bool = False
    """It will never arrive."""
    looks: int = 0
    """How often the client has looked at its data while it held the order."""

    @property
    def held(self) -> bool:
        return math.isinf(self.begins)

    def assignment(self, x: Tensor, data: ClientData, seed: int) -> Assignment:
        """What there is to do as far as is known by now, on these data of the client."""
        return Assignment(
            self.order,
            x,
            torch.from_numpy(data.y),
            data.train,
            self.steps,
            self.count,
            seed,
            tuple(self.sends),
        )

    def update(self, outcome: Outcome, samples: int) -> Update:
        """What the strategy is told of its outcome."""
        return Update(
            self.order.client,
            outcome.version,
            outcome.start,
            outcome.weights,
            samples,
            self.steps,
            outcome.chosen,
            outcome.answers,
        )
