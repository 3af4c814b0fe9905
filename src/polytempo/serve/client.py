"""A client for devices with a training loop of their own, in any framework: models are named float32 arrays."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from polytempo.core.errors import UserError
from polytempo.core.orders import Work
from polytempo.core.state import pack
from polytempo.core.vectors import Schema
from polytempo.serve import wire_pb2 as pb
from polytempo.serve.access import read_token
from polytempo.serve.addresses import check_loopback
from polytempo.serve.certs import client_credentials
from polytempo.serve.connection import Connection, RefusedError
from polytempo.serve.kept_task import KeptTask, check_place, forget, read_kept, write_kept
from polytempo.serve.logs import log
from polytempo.serve.wire import WireError, as_written, entries_of, entry_of, floats, make_body, read_body

REFUSALS_IN_A_ROW = 5

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


@dataclass(frozen=True)
class Place:
    """Which branch a client belongs to, and how far that is."""

    branch: int
    """Clients with the same number share a model."""
    version: int
    """Of the model that the client would be served now; -1 if the method does not number them."""
    members: int
    """Clients that are there and share it, this one among them."""


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
    base: int
    """Number of the model that the training last started from."""
    heeded: int
    """Number of the last order that belongs to it."""
    reported: bool = False
    """The server asks for what there is: stop and push."""
    withdrawn: bool = False
    """The server waits for this no longer."""
    news: deque[Model] = field(default_factory=deque)

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
            self.base = models[-1].number
        return models


class Client:
    """A session with a server. ``token`` is the file with the client's secret, or the secret itself; ``ca`` the
    certificate of the authority that signed the server's. Plaintext only with ``insecure`` and only on loopback. With
    ``keep`` the open task is kept in this file, and a client that begins anew goes on with it."""

    def __init__(
        self,
        address: str,
        token: str | Path,
        ca: str | Path | None = None,
        *,
        insecure: bool = False,
        keep: str | Path | None = None,
    ) -> None:
        if insecure:
            check_loopback(address)
        elif ca is None:
            raise UserError("A client needs the certificate of the authority that signed the server's: ca='ca.pem'.")
        self.number: int | None = None
        """Which client this is, as the token says."""
        self.schema: Schema | None = None
        self.seed = 0
        self._task: Task | None = None
        self._keep = None if keep is None else Path(keep)
        self._kept: KeptTask | None = None
        """Of an earlier session: the server has not said yet whether it still waits for it."""
        if self._keep is not None:
            check_place(self._keep)
            self._kept = read_kept(self._keep)
        self._welcome = pb.Welcome()
        self._sessions = 0
        self._changed = threading.Condition()
        self._connection = Connection(
            address,
            read_token(Path(token)) if isinstance(token, Path) or Path(token).is_file() else token.strip(),
            None if insecure else client_credentials(Path(str(ca))),
            self._hello,
            self._take,
            self._failed,
        )
        self._connection.open()

    def wait_for_welcome(self, timeout: float | None = None) -> tuple[int, Schema, int]:
        """Which client this is, what the server's model looks like, and its seed, as soon as it has said so."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.schema or self._connection.failure, timeout):
                raise TimeoutError(f"{self._connection.address} has not answered within {timeout} s")
            if self.number is None or self.schema is None:
                assert self._connection.failure is not None
                raise self._connection.failure
            return self.number, self.schema, self.seed

    def pull(self, timeout: float | None = None) -> Model:
        """The model that this client would be served now, without training."""
        head, body = self._connection.ask(pb.Head(pull=pb.Pull()), timeout=timeout)
        return self._model(head, body)

    def branch(self, timeout: float | None = None) -> Place:
        """Which branch this client belongs to now. Nothing is trained, and no model is sent."""
        head, _ = self._connection.ask(pb.Head(branch=pb.Branch()), timeout=timeout)
        return Place(head.place.branch, head.place.version, head.place.members)

    def task(self, timeout: float | None = None) -> Task:
        """The next task; waits until it is this client's turn."""
        if self._kept is not None:
            self.wait_for_welcome(timeout)  # it says whether that is the next task
        while True:
            session = self._sessions
            if self._task is None:
                self._connection.ask(pb.Head(ready=pb.Ready()), timeout=timeout)
            with self._changed:
                # A task that was ordered while the connection was broken has to be asked for anew.
                if not self._changed.wait_for(lambda: self._task or self._sessions != session, timeout):  # noqa: B023
                    raise TimeoutError(f"no task has come within {timeout} s")
                if self._task is not None:
                    return self._task

    def hold(self, task: Task, seconds: float) -> bool:
        """Keep a task for so many seconds before you train. False as soon as the server withdraws it, or asks for what
        there is: then do not wait any longer."""

        def told() -> bool:
            return task.withdrawn or task.reported or self._connection.failure is not None

        with self._changed:
            self._changed.wait_for(told, min(seconds, threading.TIMEOUT_MAX))
            if self._connection.failure is not None:
                raise self._connection.failure
            return not told()

    def push(
        self,
        task: Task,
        tensors: Tensors,
        *,
        samples: int,
        steps: int | None = None,
        chosen: int | None = None,
        answers: Mapping[str, Any] | None = None,
        ready: bool = True,
        timeout: float | None = None,
    ) -> None:
        """Hand in the result of a task; when this returns it is safe with the server. Tensors that the task does not
        train may be left out. ``steps``: those done, if not all. With ``ready`` the next task is asked for."""
        text, extra = pack(dict(answers or {}))
        arrays = [np.asarray(array, np.float32) for array in tensors.values()] + [tensor.numpy() for tensor in extra]
        names = [*tensors, *(f"answer/{i}" for i in range(len(extra)))]
        try:
            entries = tuple(entry_of(name, array) for name, array in zip(names, arrays, strict=True))
        except WireError as error:
            raise UserError(f"The update cannot be sent: {error}.") from None
        said = pb.Push(
            task=task.number,
            base=task.base,
            samples=samples,
            steps=task.work.steps_for(samples) if steps is None else steps,
            chosen=chosen,
            answers=text,
            ready=ready,
        )
        self._connection.ask(pb.Head(push=said), make_body(entries, arrays), timeout)
        with self._changed:
            if self._task is task:  # the answer brought no new one
                self._drop_task()

    def run(
        self,
        train: Callable[[Task], tuple[Tensors, int] | tuple[Tensors, int, dict[str, Any]]],
        updates: int | None = None,
        pushed: Callable[[Task], None] | None = None,
    ) -> Task | None:
        """Carry out tasks until so many updates were pushed (default: for ever). ``train`` returns the trained tensors,
        the number of samples and, if you like, further arguments of ``push``. ``pushed`` is told of every task whose
        result is safe with the server. A client that keeps its task asks for one after its last update too: it is
        returned, if the answer to that update has brought it."""
        done = refused = 0
        while updates is None or done < updates:
            task = self.task()
            tensors, samples, *more = train(task)
            if task.withdrawn:
                continue
            goes_on = updates is None or done + 1 < updates or self._keep is not None
            arguments = {"ready": goes_on, **(more[0] if more else {})}
            try:
                self.push(task, tensors, samples=samples, **arguments)
                done, refused = done + 1, 0
                if pushed is not None:
                    pushed(task)
            except RefusedError as error:
                refused += 1
                log("refused", level=logging.WARNING, task=task.number, reason=str(error))
                if refused == REFUSALS_IN_A_ROW:
                    raise
                self._begin_anew()
        return self._task

    def leave(self, timeout: float | None = None) -> None:
        """Say goodbye: the server counts this client out at once."""
        self._connection.ask(pb.Head(leave=pb.Leave()), timeout=timeout)
        with self._changed:
            self._drop_task()
        self.close()

    def close(self) -> None:
        """End the session. The server waits a while for this client to come back."""
        self._connection.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin_anew(self) -> None:
        """Leave and come again, with nothing in hand."""
        self._connection.ask(pb.Head(leave=pb.Leave()))
        with self._changed:
            self._drop_task()
        self._connection.ask(pb.Head(hello=pb.Hello()))

    def _drop_task(self) -> None:
        self._task = None
        if self._keep is not None:
            forget(self._keep)

    # On the connection's thread.

    def _hello(self) -> pb.Hello:
        with self._changed:
            if self._kept is not None:
                return pb.Hello(task=self._kept.task.number, heeded=self._kept.task.number)
            task = self._task
            return pb.Hello() if task is None else pb.Hello(task=task.number, heeded=task.heeded)

    def _failed(self) -> None:
        with self._changed:
            self._sessions += 1
            self._changed.notify_all()

    def _take(self, head: pb.Head, body: bytearray) -> None:
        with self._changed:
            kind = head.WhichOneof("kind")
            if kind == "welcome":
                self._welcomed(head.welcome)
            elif kind == "task":
                self._task = self._new_task(head.task, body)
                if self._keep is not None:
                    write_kept(self._keep, KeptTask(self._connection.address, self._welcome, head.task, body))
            elif kind == "model":
                self._refresh(self._model(head, body), head.model.task)
            elif kind == "report" and self._task is not None and head.report.task == self._task.number:
                self._task.reported = True
                self._task.heeded = head.report.number
            self._changed.notify_all()

    def _welcomed(self, said: pb.Welcome) -> None:
        self.number, self.seed = said.client, said.seed
        self.schema = Schema(tuple(said.names), tuple(tuple(s.sizes) for s in said.shapes), said.parameters)
        self._welcome = said
        self._sessions += 1
        if self._kept is not None:
            self._take_up(self._kept, said)
        elif self._task is not None and self._task.number != said.task:
            self._task.withdrawn = True
            self._drop_task()

    def _take_up(self, kept: KeptTask, said: pb.Welcome) -> None:
        """Go on with the task of an earlier session, if that makes sense."""
        self._kept = None
        void = kept.void(self._connection.address, said)
        if void is None:
            self._task = self._new_task(kept.task, kept.body)
            log("goes on", task=kept.task.number, version=kept.task.version)
        else:
            self._drop_task()
            log("begins anew", level=logging.WARNING, task=kept.task.number, reason=f"The kept task is void: {void}.")

    def _refresh(self, model: Model, task: int) -> None:
        if self._task is not None and task == self._task.number:
            self._task.news.append(model)
            self._task.heeded = model.number

    def _new_task(self, said: pb.Task, body: bytearray) -> Task:
        work = Work(
            said.work.steps if said.work.HasField("steps") else None,
            said.work.epochs if said.work.HasField("epochs") else None,
            said.work.batch_size,
            said.work.optimizer,  # type: ignore[arg-type]
            said.work.lr,
            said.work.momentum,
            said.work.weight_decay,
        )
        tensors = self._tensors(body)
        extras = {name: tensors.pop(name) for name in list(tensors) if "/" in name and name not in self._names}
        return Task(said.number, said.version, said.count, work, tensors, extras, said, said.number, said.number)

    def _model(self, head: pb.Head, body: bytearray) -> Model:
        return Model(self._tensors(body), head.model.version, head.model.number, head.model.rebase)

    @property
    def _names(self) -> tuple[str, ...]:
        return () if self.schema is None else self.schema.names

    def _tensors(self, body: bytearray) -> dict[str, np.ndarray]:
        assert self.schema is not None
        data = as_written(body, entries_of(self.schema))
        if data is None:
            return read_body(body)
        return {name: tensor.numpy() for name, tensor in self.schema.views(floats(data)).items()}
