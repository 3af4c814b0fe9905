"""What a server sends, as a client sees it: tasks and models, as named float32 arrays."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from polytempo_client.model.schema import Schema
from polytempo_client.personal.told import Personal
from polytempo_client.protocol import wire_pb2 as pb
from polytempo_client.protocol.bodies import as_written, entries_of, read_body
from polytempo_client.protocol.personal import personal_of
from polytempo_client.work import Work

Tensors = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Model:
    """A model as the server sent it."""

    tensors: dict[str, np.ndarray]
    version: int
    number: int
    """Of the order that brought it; 0 if it is not one to train from."""
    rebase: bool = False
    """Of a refresh: go on from this model plus your own progress."""
    body: bytearray = field(default_factory=bytearray, repr=False)
    """As it came: whoever trains may have written into ``tensors``."""
    personal: Personal | None = None
    """Of a reply to a pull, where clients keep models of their own: what is needed to mix it with one's own, ..."""
    answered: int = 0
    """... and this client's last task whose result was taken."""


@dataclass(frozen=True)
class Membership:
    """Which branch a client belongs to, and how far that is."""

    branch: int
    """Clients with the same number share a model."""
    version: int
    """Of the model that the client would be served now; -1 if the method does not number them."""
    members: int
    """Clients that are present and share it, this one among them."""


@dataclass
class Task:
    """Train from ``tensors`` and push the result. While you train, ask for ``refreshes`` and look at ``reported`` and
    ``withdrawn`` as often as you like."""

    number: int
    version: int
    count: int
    """Tasks that this client was given before."""
    work: Work
    tensors: dict[str, np.ndarray]
    extras: dict[str, np.ndarray]
    """Further tensors that belong to it: ``anchor/NAME``, ``linear/NAME``, ``candidate/0/NAME``,
    ``mask/NAME``."""
    ordered: pb.Task
    """The message itself: objective, questions, candidates, trainable layers."""
    started: Model
    """What the training last started from: what the task brought, or a refresh."""
    heeded: int
    """Number of the last order that belongs to it."""
    reported: bool = False
    """The server asks for what there is: stop and push."""
    withdrawn: bool = False
    """The server waits for this no longer."""
    news: deque[Model] = field(default_factory=deque)

    @property
    def personal(self) -> Personal | None:
        """What is needed to train from a mixture with one's own model; None if that is not wanted."""
        return personal_of(self.ordered)

    @property
    def answered(self) -> int:
        """Number of this client's last task whose result was taken; 0 if there is none."""
        return self.ordered.answered

    @property
    def held(self) -> dict[str, np.ndarray]:
        """The model to use until you train: the task's own, or the last refresh that came since."""
        return self.news[-1].tensors if self.news else self.tensors

    def refreshes(self) -> list[Model]:
        """Models that arrived since you last asked, oldest first. Go on from the last: the update counts from it."""
        models: list[Model] = []
        while self.news:
            models.append(self.news.popleft())
        if models:
            self.started = models[-1]
        return models

    @property
    def base(self) -> int:
        """Number of the model that the training last started from."""
        return self.started.number


def task_of(message: pb.Task, body: bytearray, schema: Schema) -> Task:
    """The task that a message brings."""
    work = Work(
        message.work.steps if message.work.HasField("steps") else None,
        message.work.epochs if message.work.HasField("epochs") else None,
        message.work.batch_size,
        message.work.optimizer,
        message.work.lr,
        message.work.momentum,
        message.work.weight_decay,
        message.work.stream,
    )
    tensors = read_tensors(body, schema)
    extras = {name: tensors.pop(name) for name in list(tensors) if "/" in name and name not in schema.names}
    started = Model(tensors, message.version, message.number, body=body)
    return Task(message.number, message.version, message.count, work, tensors, extras, message, started, message.number)


def model_of(message: pb.Model, body: bytearray, schema: Schema) -> Model:
    """The model that a message brings."""
    tensors, personal = read_tensors(body, schema), personal_of(message)
    return Model(tensors, message.version, message.number, message.rebase, body, personal, message.answered)


def read_tensors(body: bytearray, schema: Schema) -> dict[str, np.ndarray]:
    """A message's tensors, for whoever trains to write into: the message stays as it came. What travelled in half
    precision is float32 again."""
    data = as_written(body, entries_of(schema))
    if data is not None:
        return schema.views(np.frombuffer(data, np.float32).copy())
    return {
        name: array.astype(np.float32) if array.dtype == np.float16 else array
        for name, array in read_body(body).items()
    }
