"""The latest vector of each client and their mean, for methods that correct an update by what the others do."""

import torch
from torch import Tensor

from polytempo.core.stateful import Attributes, stateful


@stateful
class MemberMean(Attributes):
    """One vector per client, zero until it is put, shared and never copied; and their sum, kept up with every change,
    so that the mean over all members costs O(d) however many they are."""

    def __init__(self, like: Tensor) -> None:
        self.vectors: dict[int, Tensor] = {}
        self.zero = torch.zeros_like(like)
        self.total = torch.zeros_like(like, dtype=torch.float64)
        """In double precision, where adding and taking away hardly rounds."""

    def of(self, client: int) -> Tensor:
        return self.vectors.get(client, self.zero)

    def put(self, client: int, vector: Tensor) -> None:
        self.total.add_(vector).sub_(self.of(client))
        self.vectors[client] = vector

    def forget(self, client: int) -> None:
        """The client is no member any more."""
        if client in self.vectors:
            self.total.sub_(self.vectors.pop(client))

    def mean(self, members: int) -> Tensor:
        """Over this many members, those without a vector included."""
        return (self.total / members).to(self.zero.dtype)
