"""What a strategy may order. Everything in an order is data, so that it can be simulated, sent and journalled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from polytempo.core.schedules import Schedule
from polytempo.core.stateful import stateful
from polytempo_client.personal.told import Personal
from polytempo_client.work import Amount

if TYPE_CHECKING:  # a client without torch needs to know its work too
    from torch import Tensor


@stateful
@dataclass(frozen=True, slots=True)
class Work(Amount):
    """How much and how to train locally."""

    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: float | Schedule = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    stream: int = 0
    """Which random streams batches and dropout are drawn from; 0: the usual ones."""

    def stream_keys(self, client: int, count: int) -> tuple[int, ...]:
        """The keys of these streams (``polytempo_client/streams.py``) for a client that has carried out so many orders
        before."""
        return (client, count, self.stream) if self.stream else (client, count)


@stateful
@dataclass(frozen=True, slots=True)
class Objective:
    """What is added to the local loss, over the parameters w and an anchor a (unless given, the start weights or those
    of the last refresh):
    ``proximal/2 ||w - a||^2 + cosine (1 - cos(w, a)) + l2 ||w - a|| + <linear, w>``. The linear term corrects every
    gradient by the same vector, as SCAFFOLD's control variates do."""

    proximal: float = 0.0
    cosine: float = 0.0
    l2: float = 0.0
    anchor: Tensor | None = None
    linear: Tensor | None = None

    @property
    def plain(self) -> bool:
        return not (self.proximal or self.cosine or self.l2) and self.linear is None


@stateful
@dataclass(frozen=True, slots=True)
class Candidates:
    """Several models for the client to choose from. ``best``: it starts from the one with the lowest loss on its own
    data (IFCA). ``mixture``: the anchor of its objective is their mixture, weighted by the share of its samples that
    each serves best (FedSoft). The update's ``answers`` carry ``"losses"`` and, for a mixture, ``"shares"``."""

    models: tuple[Tensor, ...]
    versions: tuple[int, ...]
    use: Literal["best", "mixture"] = "best"


@stateful
@dataclass(frozen=True, slots=True)
class Due:
    """When a strategy that plans arrivals awaits an update. For the records of the driver; the client is not told."""

    group: int
    """The number of the arrival group: whose members are to arrive together."""
    expected: float
    latest: float

    def row(self) -> dict[str, float]:
        """As it stands in records: run directories, logs, the status of a service."""
        return {"arrival_group": self.group, "expected": self.expected, "latest": self.latest}


@stateful
@dataclass(frozen=True, slots=True)
class Train:
    """Client: train from these weights and hand in the result."""

    client: int
    weights: Tensor
    version: int
    work: Work
    objective: Objective = field(default_factory=Objective)
    candidates: Candidates | None = None
    questions: tuple[str, ...] = ()
    """Names of registered questions (``polytempo list questions``); the answers ride with the update."""
    mask: Tensor | None = None
    """Boolean, as long as the weights: only these coordinates are trained and uploaded."""
    trainable: tuple[str, ...] = ()
    """Layer names: only these layers are trained and uploaded. Empty: all."""
    due: Due | None = None
    personal: Personal | None = None

    def tensors(self) -> list[Tensor]:
        """Everything that the client is sent."""
        optional = (self.objective.anchor, self.objective.linear, self.mask)
        offered = () if self.candidates is None else self.candidates.models
        return [self.weights, *(tensor for tensor in optional if tensor is not None), *offered]

    @property
    def models_down(self) -> int:
        """How many vectors as long as the model the client has to download for it."""
        models = 1 if self.candidates is None else len(self.candidates.models)
        return models + sum(vector is not None for vector in (self.objective.anchor, self.objective.linear))


@stateful
@dataclass(frozen=True, slots=True)
class Send:
    """Client: here is a model. The reply to a pull; to a client in training, a refresh: it goes on from these weights
    with the steps it has left and keeps its optimiser's state, or, with ``rebase``, from these weights plus its own
    progress so far. From then on its version and its delta count from the model sent."""

    client: int
    weights: Tensor
    version: int
    rebase: bool = False


@stateful
@dataclass(frozen=True, slots=True)
class Report:
    """Client: hand in what you have now."""

    client: int


@stateful
@dataclass(frozen=True, slots=True)
class SetTimer:
    """Driver: call ``fired(key)`` at this time."""

    at: float
    key: str


Order = Train | Send | Report | SetTimer
Orders = Iterable[Order] | None
