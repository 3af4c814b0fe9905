"""CASA's buffers (section 4.3, Algorithm 2): for every client, recent models of others that began at about the same
time, to be compared with its own when it comes."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from polytempo.core.stateful import Attributes, stateful
from polytempo.strategies.parts.cosines import norm


@stateful
@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What of an update is compared. Buffers hold references to it, never copies."""

    client: int
    vector: Tensor
    norm: float
    samples: int

    @classmethod
    def of(cls, client: int, vector: Tensor, samples: int) -> "Fingerprint":
        return cls(client, vector, norm(vector), samples)


@stateful
class Buffers(Attributes):
    """The buffers of all clients as one table of entries (owner, sender, which of the sender's models), oldest first.
    No buffer holds two models of one sender."""

    def __init__(self) -> None:
        self.owners = np.zeros(0, np.int64)
        self.senders = np.zeros(0, np.int64)
        self.numbers = np.zeros(0, np.int64)
        self.held: dict[int, Fingerprint] = {}
        """The models that some entry refers to, by number."""
        self.made = 0

    def __len__(self) -> int:
        return len(self.owners)

    def of(self, owner: int) -> list[Fingerprint]:
        """The models in a client's buffer, oldest first."""
        return [self.held[number] for number in self.numbers[self.owners == owner].tolist()]

    def offer(self, fingerprint: Fingerprint, owners: np.ndarray) -> None:
        """Put a model into the buffers of these clients, but for those that hold one of the same sender."""
        holders = self.owners[self.senders == fingerprint.client]
        holds = np.zeros(1 + max(holders.max(initial=0), owners.max(initial=0)), bool)
        holds[holders] = True
        owners = owners[~holds[owners]]
        if len(owners):
            self.held[self.made] = fingerprint
            self.owners = np.concatenate([self.owners, owners])
            self.senders = np.concatenate([self.senders, np.full_like(owners, fingerprint.client)])
            self.numbers = np.concatenate([self.numbers, np.full_like(owners, self.made)])
            self.made += 1

    def keep(self, entries: np.ndarray) -> None:
        """Forget all other entries, and the models that none refers to any more."""
        before = self.numbers[np.diff(self.numbers, prepend=-1) > 0]  # in order of age, so in order of numbers
        self.owners, self.senders, self.numbers = self.owners[entries], self.senders[entries], self.numbers[entries]
        left, right = (np.searchsorted(self.numbers, before, side) for side in ("left", "right"))
        for number in before[left == right].tolist():
            del self.held[number]

    def take(self, owner: int) -> list[Fingerprint]:
        """Forget a client's buffer; what was in it, oldest first."""
        found = self.of(owner)
        if found:
            self.keep(self.owners != owner)
        return found


def within_budget(budget: int, compared: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """A mask of the entries to keep: pairs never compared first, then owners with a smaller alpha (the slower ones),
    then the older entry (Eq. 11)."""
    rank = compared + alpha + 1e-12 * np.arange(len(alpha))  # alpha is less than 1, so it only decides between equals
    kept = np.zeros(len(rank), bool)
    kept[np.argpartition(rank, budget)[:budget]] = True
    return kept
