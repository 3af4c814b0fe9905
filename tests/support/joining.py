"""Clients that join with a linear model and data of their own."""

import threading

from torch import Tensor, nn

from polytempo.learn.models import Inputs
from polytempo.testing import tiny_dataset
from polytempo.world.dataset import Dataset

LINEAR = {"model": "support.joining:linear", "data": "support.joining:data", "engine": "eager"}


def data() -> Dataset:
    return tiny_dataset()


def linear(_: Inputs) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3))


class Gated(nn.Linear):
    """Stops in its first training step until it may go on."""

    closed = False
    reached = threading.Event()
    opened = threading.Event()

    def __init__(self) -> None:
        super().__init__(4, 3)

    @classmethod
    def close(cls) -> None:
        """The next training step of any of them stops."""
        cls.reached.clear()
        cls.opened.clear()
        cls.closed = True

    def forward(self, x: Tensor) -> Tensor:
        if Gated.closed:
            Gated.closed = False
            Gated.reached.set()
            assert Gated.opened.wait(60)
        return super().forward(x)
