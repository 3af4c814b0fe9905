"""Robustness to what valid-looking updates can do, for every method alike: an update that leads too far is scaled down,
and what moves the model is the coordinate-wise median, or a trimmed mean, of recent deltas of different clients.

Clients are counted once, by their newest update, so that a fast one does not outvote the others. Deltas are compared
on one branch only; they move with their clients when branches split and merge."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import median_low

import torch
from torch import Tensor

from polytempo.core.compiled import compiled
from polytempo.core.errors import UserError
from polytempo.core.events import Update
from polytempo.core.state import Attributes, stateful

HANDFUL = 9
"""Before so many clients were heard, nobody knows how far updates usually lead. Where a fifth of the clients attack,
they are the majority of nine once in fifty times, of five once in seventeen."""
NORMS = 100
"""Of so many clients, those heard last, the median of norms is taken."""
MOST = 30
"""No mix is of more deltas: sorting them takes time with the square of their number."""
COORDINATES = 8192
"""So many coordinates of all deltas are sorted at a time, to stay in the cache."""


@stateful
@dataclass(frozen=True)
class Mix:
    """How recent deltas become one: the mean of what is left, coordinate by coordinate, when at each end a share of the
    values is taken away. A share of a half leaves the median."""

    recent: int
    share: float

    def trimmed(self, count: int) -> int:
        """How many of so many values are taken away at each end: rounded up, and one or two are always left."""
        return min(ceil(self.share * count - 1e-9), (count - 1) // 2)


def parse_robust(text: str) -> Mix | None:
    """``none``, ``median`` (of the 10 most recent), ``median:15``, ``trimmed``, ``trimmed:15``, ``trimmed:15:0.2``."""
    kind, *rest = text.split(":")
    try:
        if text == "none":
            return None
        if kind not in ("median", "trimmed") or len(rest) > (1 if kind == "median" else 2):
            raise ValueError
        recent = int(rest[0]) if rest else 10
        share = 0.5 if kind == "median" else float(rest[1]) if len(rest) == 2 else 0.3
        if not 3 <= recent <= MOST or not 0 < share <= 0.5:
            raise ValueError
        return Mix(recent, share)
    except ValueError:
        raise UserError(
            f"Robust mixing {text!r} is not understood. Expected none, median:K or trimmed:K:SHARE, with K recent "
            f"updates (3 to {MOST}, default 10) and a SHARE to leave out at each end (0 to 0.5, default 0.3)."
        ) from None


@stateful
@dataclass(frozen=True)
class Recent:
    """The newest delta of a client, ..."""

    delta: Tensor
    branch: int
    """... the branch that it counted on, ..."""
    home: int
    """... and the one that its client was on."""

    def branch_now(self, home: int) -> int:
        """It stays on its branch until the client, who is on ``home`` now, goes to another."""
        return self.branch if home == self.home else home


@stateful
class Screen(Attributes):
    """Looks at every update before the method does."""

    def __init__(self, clip: float | None, mix: Mix | None) -> None:
        self.clip = clip
        self.mix = mix
        self.norms: dict[int, float] = {}
        """Client -> the norm of its newest delta, before it was clipped; the client heard last is the last."""
        self.recent: dict[int, Recent] = {}
        """The deltas of which mixes are made, at most ``mix.recent`` on a branch; the newest is the last."""

    def screened(
        self, update: Update, branch: int, cluster_of: Callable[[int], int], members: Collection[int]
    ) -> Update:
        """What the method is told instead, the update itself where nothing is the matter with it. ``branch`` is the one
        that it counts on; who is no member any more is not mixed with."""
        length = float(torch.linalg.vector_norm(update.delta, dtype=torch.float64))
        if not length:  # of a client that had no time to train: it says nothing of what others should do
            return update
        if self.clip is not None:
            if self._is_one_of_the_first(update.client, length, len(members)):
                return replace(update, weights=update.start, own=update.weights)
            update = self._clipped(update, length, self.clip)
        if self.mix is not None:
            self._forget_all_but(members)
            update = self._mixed(update, self.mix, branch, cluster_of)
        return update

    def _is_one_of_the_first(self, client: int, length: float, members: int) -> bool:
        """Keep the norm. There is nothing yet to measure the first update of the first few clients by: it only says how
        far updates lead. Nor do later ones count while their client is the only one heard: it would measure itself."""
        heard = client in self.norms
        self.norms.pop(client, None)
        self.norms[client] = length
        if len(self.norms) > NORMS:
            del self.norms[next(iter(self.norms))]
        return len(self.norms) < min(2 if heard else HANDFUL, members)

    def _clipped(self, update: Update, length: float, clip: float) -> Update:
        """``delta min(1, clip m / ||delta||)``, m the median of the clients' newest norms, its own among them; of an
        even number, the smaller of the two in the middle."""
        bound = clip * median_low(self.norms.values())
        return update if length <= bound else replace(update, weights=update.start + update.delta * (bound / length))

    def _mixed(self, update: Update, mix: Mix, branch: int, cluster_of: Callable[[int], int]) -> Update:
        self.recent.pop(update.client, None)
        self.recent[update.client] = Recent(update.delta, branch, cluster_of(update.client))
        peers = [client for client, recent in self.recent.items() if recent.branch_now(cluster_of(client)) == branch]
        for client in peers[: -mix.recent]:
            del self.recent[client]
        deltas = [self.recent[client].delta for client in peers[-mix.recent :]]
        if len(deltas) == 1:
            return update
        mixed = trimmed_mean(deltas, mix.trimmed(len(deltas)))
        return replace(update, weights=update.start + mixed, own=update.weights)

    def _forget_all_but(self, members: Collection[int]) -> None:
        for client in [client for client in self.recent if client not in members]:
            del self.recent[client]


def trimmed_mean(vectors: Sequence[Tensor], trimmed: int) -> Tensor:
    """In each coordinate the mean without so many of the largest and of the smallest values."""
    mean = torch.empty_like(vectors[0])
    for begin in range(0, len(mean), COORDINATES):
        rows = torch.stack([vector[begin : begin + COORDINATES] for vector in vectors])
        _mean_of_the_middle(rows.numpy(), trimmed, mean[begin : begin + COORDINATES].numpy())
    return mean


@compiled(nogil=True)
def _mean_of_the_middle(rows, trimmed, mean):  # type: ignore[no-untyped-def]
    """Sorts every column by exchanging neighbours, whole rows at a time, which the processor does in parallel."""
    count, size = rows.shape
    for turn in range(count):
        for upper in range(turn % 2, count - 1, 2):
            a, b = rows[upper], rows[upper + 1]
            for k in range(size):
                low = a[k] if a[k] < b[k] else b[k]
                b[k] = b[k] if a[k] < b[k] else a[k]
                a[k] = low
    mean[:] = 0
    for row in range(trimmed, count - trimmed):
        for k in range(size):
            mean[k] += rows[row, k]
    for k in range(size):
        mean[k] /= count - 2 * trimmed
