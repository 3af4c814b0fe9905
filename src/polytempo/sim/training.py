"""A simulated client's open task: what the simulator knows of it beside the flight."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from polytempo.core.flight import Flight
from polytempo.core.orders import Send
from polytempo.core.stateful import stateful
from polytempo.learn.learner import Assignment
from polytempo.world.federation import ClientData


@stateful
@dataclass
class Training:
    """One client's training between dispatch and arrival."""

    flight: Flight
    generation: int
    """Of the data that it trains on."""
    step_seconds: float
    steps: int
    upload_bytes: int
    begins: float = math.inf
    """When its first step begins, after the download; infinite while the client holds the order."""
    refreshed_at: list[int] = field(default_factory=list)
    """Steps done when each refresh of the flight arrived."""
    lost: bool = False
    """It will never arrive."""
    looks: int = 0
    """How often the client has looked at its data while it held the order."""

    @property
    def client(self) -> int:
        return self.flight.order.client

    @property
    def ticket(self) -> int:
        """The number under which its update arrives: that of the Report order, if there was one."""
        return self.flight.reported or self.flight.number

    @property
    def is_held(self) -> bool:
        """Does the client have the order without having begun?"""
        return math.isinf(self.begins)

    def refresh(self, number: int, send: Send, done: int) -> None:
        """Remember a refresh that arrived after so many steps."""
        self.flight.refresh(number, send)
        self.refreshed_at.append(done)

    def assignment(self, x: Tensor, data: ClientData, seed: int) -> Assignment:
        """What there is to do as far as is known by now, on these data of the client."""
        flight = self.flight
        sends = (send for _, send in flight.sends)
        return Assignment(
            flight.order,
            x,
            torch.from_numpy(data.y),
            data.train,
            self.steps,
            flight.count,
            seed,
            tuple(zip(self.refreshed_at, sends, strict=True)),
        )
