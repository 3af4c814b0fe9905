"""A branch: a line of model versions. A method with one global model has one, a clustered method one per cluster."""

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from polytempo.core.stateful import stateful


@stateful
class Branch:
    """One server model. Every change makes a new version; a vector that was handed out is never changed (copy on
    write), so orders, updates and evaluations may keep references."""

    def __init__(self, weights: Tensor, version: int = 0) -> None:
        self._weights = weights
        self._handed_out = True
        self.version = version

    @property
    def weights(self) -> Tensor:
        """The current version's vector, to be read only."""
        self._handed_out = True
        return self._weights

    def mix(self, weights: Tensor, share: float, mask: Tensor | None = None) -> None:
        """``w <- (1 - share) w + share weights``, where there is a mask only inside it."""
        shares = share if mask is None else share * mask
        self._weights = torch.lerp(self._weights, weights, shares, out=self._target())
        self._changed()

    def step(self, delta: Tensor, scale: float = 1.0) -> None:
        """``w <- w + scale delta``"""
        self._weights = torch.add(self._weights, delta, alpha=scale, out=self._target())
        self._changed()

    def replace(self, weights: Tensor) -> None:
        """``w <- weights``; the vector is shared from now on."""
        self._weights = weights
        self.version += 1
        self._handed_out = True

    def _target(self) -> Tensor:
        return torch.empty_like(self._weights) if self._handed_out else self._weights

    def _changed(self) -> None:
        self.version += 1
        self._handed_out = False

    def save_state(self) -> dict[str, object]:
        return {"weights": self.weights, "version": self.version}

    @classmethod
    def load_state(cls, saved: dict[str, object]) -> "Branch":
        return cls(**saved)  # type: ignore[arg-type]


def branches(state: Any, name: str = "") -> Iterator[tuple[str, Branch]]:
    """All branches in a strategy's state, by where they are, also inside of its parts."""
    if isinstance(state, Branch):
        yield name, state
    elif hasattr(state, "save_state"):
        yield from branches(state.save_state(), name)
    elif isinstance(state, dict):
        for key, value in state.items():
            yield from branches(value, f"{name}.{key}" if name else str(key))
    elif isinstance(state, list | tuple | deque):
        for index, value in enumerate(state):
            yield from branches(value, f"{name}.{index}")
