"""What a request comes to, as data: an Event to be journalled and applied, a Reply, or a Refusal. Whoever decides sends
nothing; the host does."""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from polytempo.serve.access.roster import LONGEST_REASON
from polytempo.serve.server.messages import Message
from polytempo.serve.server.requests import Session
from polytempo.serve.state.events import Event


class Outgoing(NamedTuple):
    """A message, and for whom it is."""

    session: Session
    message: Message
    request: int = 0
    """Number of the request that it replies to. 0: none."""


class Reply(tuple[Outgoing, ...]):
    """Messages to send, in this order. Nothing happens to the service."""

    __slots__ = ()

    def has_direct_reply(self) -> bool:
        """Does one of them reply to a request?"""
        return any(one.request for one in self)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Nothing happens, and the client is told why. The reason may quote what the client sent, and operators read it
    too: it stays short, and holds nothing that a terminal would obey."""

    reason: str
    void: bool = False
    """The task is not open any more, or the model that the update started from is forgotten. The client may not know
    that: the first time for each task does not count against it."""
    blames: bool = True
    """Does it count against the client?"""
    failed: bool = False
    """The strategy failed on it, or on something before it. The client library does not count it either."""
    again: bool = False
    """The client is to connect anew and send it again."""

    def __post_init__(self) -> None:
        printable = "".join(sign if sign.isprintable() else "?" for sign in self.reason[:LONGEST_REASON])
        object.__setattr__(self, "reason", printable)


def strategy_failure(what: str, error: BaseException) -> Refusal:
    """The strategy failed: one that does so for every update would take every honest client to quarantine."""
    return Refusal(f"the strategy {what}: {error!r}", blames=False, failed=True)


def rolled_back() -> Refusal:
    """The request was on its way when all sessions were ended for a failure of the strategy."""
    return Refusal("the strategy failed on something else: connect again", blames=False, failed=True, again=True)


Decision: TypeAlias = Event | Reply | Refusal
