"""What happens to a service, as data: the journal holds these, and the state is what they make of it in their order."""

from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from polytempo_client.personal.told import JuryScores

Kind = Literal["joined", "ready", "updated", "pulled", "fired", "dropped", "left", "renumbered"]
"""``dropped``: a timer on which the strategy failed, or which an operator left out. It is gone; the strategy is told
nothing."""


@dataclass(frozen=True, slots=True)
class Push:
    """A push message, checked. It names orders by their numbers: the service has not looked them up yet."""

    task: int
    """Number of the Train order that it answers. This is the update's id: no task is answered twice."""
    base: int
    """Number of the order (Train or Send) whose model the training last started from."""
    weights: Tensor
    samples: int
    steps: int
    chosen: int | None = None
    answers: dict[str, Any] = field(default_factory=dict)
    ready: bool = True
    """The client asks for its next task at once."""
    accuracy: float | None = None
    """Of the model that it received on data of its own, if it says so, ..."""
    loss: float | None = None
    """... and the loss."""
    jury: JuryScores | None = None
    """What the client's jury says of that model, where the task is personal, be it true or not."""
    used: float | None = None
    """Accuracy of the model that the client works with, if it says so, ..."""
    alone: float | None = None
    """... and of one that it trains alone."""
    sent_bytes: int = 0
    """Bytes of the message behind its first frame, ..."""
    sent_seconds: float = 0.0
    """... and the seconds in which they arrived; 0 if the message was a single frame."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened, at a time of the service's clock."""

    kind: Kind
    at: float
    client: int = -1
    push: Push | None = None
    key: str = ""
    """Of a timer that fired."""
    number: int = 0
    """``renumbered``: orders are numbered from here on, ..."""
    since: int | None = None
    """... and open tasks with a larger number than this get new ones. None: open tasks keep theirs."""

    @property
    def description(self) -> str:
        """What happened, in words for an operator."""
        words = {
            "joined": f"client {self.client} joined",
            "ready": f"client {self.client} asked for work",
            "updated": f"update of client {self.client}",
            "pulled": f"client {self.client} pulled its model",
            "fired": f"timer {self.key!r}",
            "left": f"client {self.client} left",
        }
        return words.get(self.kind, self.kind)
