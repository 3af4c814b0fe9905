"""Whom to pick next. Shared by all methods, so that it means the same in simulation and in service."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal

from polytempo.core.errors import UserError
from polytempo.core.stateful import stateful
from polytempo_client.streams import stream


@stateful
@dataclass(frozen=True)
class Quota:
    """How many clients train at once (asynchronous methods) or per round (synchronous ones): a number, or a share of
    the members."""

    count: int | None = None
    share: float = 1.0
    choice: Literal["random", "round-robin"] = "random"

    def of(self, members: int) -> int:
        return ceil(self.share * members - 1e-9) if self.count is None else min(self.count, members)


EVERYONE = Quota()


def parse_quota(text: str) -> Quota:
    """``all``, ``k:10`` (at most 10 at once, chosen at random), ``k:10:round-robin``, ``share:0.1``."""
    kind, *rest = text.split(":")
    choice = rest.pop() if len(rest) == 2 else "random"
    try:
        if choice not in ("random", "round-robin"):
            raise ValueError
        if kind == "all" and not rest:
            return Quota()
        if kind == "k" and int(rest[0]) >= 1:
            return Quota(count=int(rest[0]), choice=choice)  # type: ignore[arg-type]
        if kind == "share" and 0 < float(rest[0]) <= 1:
            return Quota(share=float(rest[0]), choice=choice)  # type: ignore[arg-type]
        raise ValueError
    except (ValueError, IndexError):
        raise UserError(
            f"Participation {text!r} is not understood. Expected all, k:NUMBER or share:FRACTION (0 to 1], "
            "with :random or :round-robin behind if you like."
        ) from None


@stateful
class Participation:
    """Who is a member, who is idle, who is busy; and the choice among the idle. Every operation costs O(1) per client
    picked, however many clients there are."""

    def __init__(self, quota: Quota, seed: int) -> None:
        self.quota = quota
        self.seed = seed
        self.picks = 0
        self.members: dict[int, bool] = {}
        """Client -> is it busy."""
        self.busy = 0
        self._idle = array("q")
        self._position = array("q")
        """By client: where it stands among the idle, or -1. Arrays, because a million clients may be idle."""
        self._queue: dict[int, None] = {}  # idle clients in order of readiness, for round-robin

    def join(self, client: int) -> None:
        """A client takes part; one that comes again without having left begins anew."""
        self._forget(client)
        self.members[client] = False

    def release(self, client: int) -> list[int]:
        """A client is free; whom to start now, asynchronously: up to the quota."""
        self.rest(client)
        return self.fill()

    def rest(self, client: int) -> None:
        """A client is free, and nobody is started."""
        self._forget(client)
        self.members[client] = False
        self._stand(client, len(self._idle))
        self._idle.append(client)
        if self.quota.choice == "round-robin":
            self._queue[client] = None

    def fill(self) -> list[int]:
        """Start idle clients until as many are busy as the quota allows."""
        return self._pick(min(self.quota.of(len(self.members)) - self.busy, len(self._idle)))

    def begin_round(self) -> list[int]:
        """The members of a synchronous round, or nobody while fewer than the quota are idle."""
        return self._pick(self.wanted())

    def wanted(self) -> int:
        """How many a synchronous round begins with now: the quota, or 0 while fewer are idle."""
        wanted = self.quota.of(len(self.members))
        return wanted if wanted <= len(self._idle) else 0

    def idle(self) -> list[int]:
        """Who is idle, in the order of their numbers, for a method that picks by itself. Costs O(n log n)."""
        return sorted(self._idle)

    def employ(self, clients: Iterable[int]) -> None:
        """Start idle clients that a method has picked by itself."""
        for client in clients:
            self._employ(client)

    def could_fill(self, clients: int) -> bool:
        """Are so many idle, whoever they are, that a round among this many clients might begin?"""
        return self.quota.of(clients) <= len(self._idle)

    def begin_round_among(self, clients: Sequence[int]) -> list[int]:
        """The members of a synchronous round among these clients, or nobody while fewer of them than the quota are
        idle. Costs O(1) per client named, and for round-robin per idle client."""
        wanted = self.quota.of(len(clients))
        idle = [client for client in clients if self._is_idle(client)]
        if wanted > len(idle):
            return []
        if self.quota.choice == "round-robin":
            named = dict.fromkeys(idle)
            picked = [client for client in self._queue if client in named][:wanted]
        else:
            picked = [idle.pop(self._draw(len(idle))) for _ in range(wanted)]
        for client in picked:
            self._employ(client)
        return picked

    def leave(self, client: int) -> None:
        """A client is gone."""
        self._forget(client)
        self.members.pop(client, None)

    def _forget(self, client: int) -> None:
        if self.members.get(client):
            self.busy -= 1
        if self._is_idle(client):
            self._take(client)

    def _pick(self, count: int) -> list[int]:
        picked = []
        for _ in range(count):
            in_turn = self.quota.choice == "round-robin"
            client = next(iter(self._queue)) if in_turn else self._idle[self._draw(len(self._idle))]
            self._employ(client)
            picked.append(client)
        return picked

    def _draw(self, count: int) -> int:
        """A random position among so many."""
        if count == 1:
            return 0
        rng = stream(self.seed, "participation", self.picks)
        self.picks += 1
        return int(rng.integers(count))

    def _employ(self, client: int) -> None:
        self._take(client)
        self.members[client] = True
        self.busy += 1

    def _is_idle(self, client: int) -> bool:
        return client < len(self._position) and self._position[client] >= 0

    def _stand(self, client: int, position: int) -> None:
        """An idle client stands at this position."""
        missing = client + 1 - len(self._position)
        if missing > 0:
            self._position.extend([-1] * missing)
        self._position[client] = position

    def _take(self, client: int) -> None:
        if not self._is_idle(client):
            raise KeyError(client)
        position, last = self._position[client], self._idle.pop()
        self._position[client] = -1
        if last != client:
            self._idle[position] = last
            self._position[last] = position
        self._queue.pop(client, None)

    def save_state(self) -> dict[str, object]:
        return {
            "quota": self.quota,
            "seed": self.seed,
            "picks": self.picks,
            "members": self.members,
            "idle": self._idle.tolist(),
            "queue": self._queue,
        }

    @classmethod
    def load_state(cls, saved: dict[str, object]) -> "Participation":
        made = cls(saved["quota"], saved["seed"])  # type: ignore[arg-type]
        made.picks = saved["picks"]  # type: ignore[assignment]
        made.members = saved["members"]  # type: ignore[assignment]
        made.busy = sum(made.members.values())
        made._idle = array("q", saved["idle"])  # type: ignore[call-overload]
        for position, client in enumerate(made._idle):
            made._stand(client, position)
        made._queue = saved["queue"]  # type: ignore[assignment]
        return made
