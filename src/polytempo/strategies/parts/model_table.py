"""A model for every client, as the rows of one matrix."""

from typing import cast

import torch
from torch import Tensor

from polytempo.core.stateful import stateful


@stateful
class ModelTable:
    """Row i is the model of client i and begins as the initial model. It costs clients times parameters floats and no
    more: rows change in place, and whoever keeps one is given a copy."""

    def __init__(self, initial: Tensor) -> None:
        self.initial = initial
        self._rows = torch.empty(0, len(initial))
        self._used = 0

    def __len__(self) -> int:
        return self._used

    def __contains__(self, client: int) -> bool:
        return 0 <= client < self._used

    @property
    def matrix(self) -> Tensor:
        """All rows; it changes with them."""
        return self._rows[: self._used]

    def reach(self, client: int) -> None:
        """Have a row for this client, and for all of a lower number."""
        if client in self:
            return
        if client >= len(self._rows):  # twice as many: memory that nobody wrote to costs nothing
            rows = torch.empty(max(client + 1, 2 * len(self._rows)), len(self.initial))
            rows[: self._used] = self.matrix
            self._rows = rows
        self._rows[self._used : client + 1] = self.initial
        self._used = client + 1

    def put(self, client: int, weights: Tensor) -> None:
        self._rows[client] = weights

    def view(self, client: int) -> Tensor:
        """A client's model, to be looked at before the next event; the initial one for a client without a row."""
        return self._rows[client] if client in self else self.initial

    def copy(self, client: int) -> Tensor:
        """A client's model, to keep."""
        return self.view(client).clone()

    def save_state(self) -> dict[str, object]:
        return {"initial": self.initial, "matrix": self.matrix}

    @classmethod
    def load_state(cls, saved: dict[str, object]) -> "ModelTable":
        made = cls(cast(Tensor, saved["initial"]))
        made._rows = cast(Tensor, saved["matrix"])
        made._used = len(made._rows)
        return made
