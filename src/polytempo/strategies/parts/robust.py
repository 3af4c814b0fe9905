"""Robustness to what valid-looking updates can do, for every method alike: an update that leads too far is scaled down,
and what moves a model is the coordinate-wise median, or a trimmed mean, of recent deltas of different clients.

Every client has one vote, however fast it is: its newest delta counts, which others it is mixed with is drawn among all
clients of the branch, and between two moves of one client others have to hand in. Deltas move with their clients when
branches split and merge."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from statistics import median_low

import torch
from torch import Tensor

from polytempo.core.compiled import compiled
from polytempo.core.errors import UserError
from polytempo.core.events import Update
from polytempo.core.orders import Orders
from polytempo.core.stateful import stateful
from polytempo.strategies.base.strategy import Strategy
from polytempo.strategies.base.wrapper import Wrapper
from polytempo_client.streams import stream

HANDFUL = 9
"""Before so many clients have handed in, nobody knows how far updates usually lead. Where a fifth of the clients
attack, they are the majority of nine once in fifty times, of five once in seventeen."""
KEPT = 64
"""Deltas of so many clients are kept on a branch. Where a fifth of the clients attack, they are two fifths of 64 once
in eight thousand times."""
MOST = 30
"""No mix is of more deltas: sorting them takes time with the square of their number."""
TURN = 0.5
"""The share of the others on its branch, or of those who train at once where these are fewer, that have to hand
in between two moves of one client."""
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
        return min(math.ceil(self.share * count - 1e-9), (count - 1) // 2)


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
    """The newest delta of a client, as it was handed in, ..."""

    delta: Tensor
    norm: float
    number: int
    """... which update it was, of all, ..."""
    branch: int
    """... the branch that it counted on, ..."""
    home: int
    """... the one that its client was on, ..."""
    lot: float
    """... and the client's lot: where there are too many, those with the lowest are kept."""

    def branch_now(self, home: int) -> int:
        """It stays on its branch until the client, who is on ``home`` now, goes to another."""
        return self.branch if home == self.home else home

    def within(self, bound: float) -> Tensor:
        """Clipped."""
        return self.delta if self.norm <= bound else self.delta * (bound / self.norm)


class Robust(Wrapper):
    """A strategy whose updates are clipped and mixed before it is told of them. Mixing holds back the updates that are
    to move no model: the strategy observes them. Clipping alone holds nothing back, and measures an update by what is
    known so far."""

    remembered = ("members", "counted", "held_back", "norms", "recent", "moved")
    held_back = 0
    """A count of its own, in place of the question to the inner strategy."""

    def __init__(self, inner: Strategy, clip: float | None, mix: Mix | None) -> None:
        super().__init__(inner)
        self.clip = clip
        """How far an update may lead, in multiples of the usual; None for any distance."""
        self.mix = mix
        """Of which recent deltas an update's is made; None for its own."""

    def setup(self) -> None:
        self.members: dict[int, None] = {}
        """Clients that have joined and not left."""
        self.counted = 0
        """Updates with a delta, so far."""
        self.held_back = 0
        self.norms: dict[int, float] = {}
        """Client -> the norm of its newest delta, before it was clipped. Mixing forgets who leaves. Clipping alone does
        not: whoever stays would otherwise be measured by itself."""
        self.recent: dict[int, Recent] = {}
        """Member -> its newest delta, of at most ``KEPT`` on a branch."""
        self.moved: dict[int, int] = {}
        """Client -> with which update it last moved a model. A client that comes back does not begin anew."""

    def joined(self, client: int, now: float) -> Orders:
        self.members[client] = None
        return super().joined(client, now)

    def left(self, client: int, now: float) -> Orders:
        self.members.pop(client, None)
        return super().left(client, now)

    def forget(self, client: int) -> None:
        self.norms.pop(client, None)
        self.recent.pop(client, None)
        self.moved.pop(client, None)
        super().forget(client)

    def updated(self, update: Update, now: float) -> Orders:
        clipped, moving = self._screen(update)
        if moving is not None:
            return self.inner.updated(moving, now)
        self.held_back += 1
        return self.inner.observed(clipped, now)

    def _screen(self, update: Update) -> tuple[Update, Update | None]:
        """The update, clipped; and what is to move a model in its place, None if it is held back."""
        delta = update.delta
        length = float(torch.linalg.vector_norm(delta, dtype=torch.float64))
        if not length:  # of a client that had no time to train, or would not: it says nothing of what others should do
            return update, update if self.mix is None else None
        client, at_once = update.client, self.setting.participation.of(len(self.members))
        if self.mix is not None:
            self._forget_who_left()
        self.counted += 1
        self.norms[client] = length
        enough = len(self.norms) >= needed(len(self.members), at_once)
        known = enough or self.mix is None
        bound = self.clip * median_low(self.norms.values()) if known and self.clip is not None else math.inf
        if length > bound:
            update = replace(update, weights=update.start + delta * (bound / length))
        if self.mix is None:
            return update, update
        branch = self.inner.branch_of(update)
        lot = stream(self.setting.seed, "robust lot", client).random()
        self.recent[client] = Recent(delta, length, self.counted, branch, self.inner.cluster_of(client), lot)
        peers = self._on(branch)
        if not enough or not self._is_in_turn(client, peers, at_once):
            return update, None
        self.moved[client] = self.counted
        return update, self._mixed(update, self.mix, peers, bound)

    def _on(self, branch: int) -> list[int]:
        """The clients whose deltas count on a branch."""
        there = [who for who, recent in self.recent.items() if recent.branch_now(self.inner.cluster_of(who)) == branch]
        if len(there) > KEPT:
            there.sort(key=lambda who: self.recent[who].lot)
            for too_many in there[KEPT:]:
                del self.recent[too_many]
        return there[:KEPT]

    def _mixed(self, update: Update, mix: Mix, peers: list[int], bound: float) -> Update:
        if len(peers) > mix.recent:
            drawn = stream(self.setting.seed, "robust mix", self.counted).choice(len(peers), mix.recent, replace=False)
            peers = [peers[index] for index in drawn]
        if peers == [update.client]:
            return update
        return update.mixed(trimmed_mean([self.recent[who].within(bound) for who in peers], mix.trimmed(len(peers))))

    def _is_in_turn(self, client: int, peers: Collection[int], at_once: int) -> bool:
        """Have enough others handed in since this client last moved a model? A few fast clients would otherwise move
        it again and again by what all the others handed in once."""
        since = self.moved.get(client, 0)
        others = [self.recent[who].number > since for who in peers if who != client]
        return sum(others) >= TURN * min(len(others), at_once - 1)

    def _forget_who_left(self) -> None:
        for kept in (self.norms, self.recent):
            for client in [client for client in kept if client not in self.members]:
                del kept[client]


def needed(members: int, at_once: int) -> int:
    """How many clients have to hand in before any of them moves a model, so that those who attack and come first are
    not measured by themselves: more than half of those who train at once, and a handful where these are few."""
    return max(at_once // 2 + 1, min(HANDFUL, members // 2 + 1))


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
