"""A client for devices with a training loop of their own, in any framework: models are named float32 arrays."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from polytempo_client.errors import NotFiniteError, RefusedError, UserError, WireError
from polytempo_client.inbox import Inbox
from polytempo_client.keeping.own_memory import OwnMemory, Remembered, memory_path
from polytempo_client.logs import log
from polytempo_client.model.encodings import Encodings
from polytempo_client.model.schema import Schema
from polytempo_client.personal.jury import jury_key
from polytempo_client.personal.told import JuryScores
from polytempo_client.protocol import wire_pb2 as pb
from polytempo_client.protocol.answers import pack_answers
from polytempo_client.protocol.bodies import entry_of, make_body
from polytempo_client.protocol.framing import PROTOCOL, Buffer
from polytempo_client.protocol.personal import jury_message
from polytempo_client.protocol.tasks import Membership, Model, Task, Tensors, model_of
from polytempo_client.session.addresses import Servers, check_all_loopback, servers_of
from polytempo_client.session.connection import Connection
from polytempo_client.session.credentials import token_of
from polytempo_client.session.tls import Pair, client_credentials
from polytempo_client.updates.counts import checked_counts
from polytempo_client.updates.own_rule import NamedScore, OwnRule, PersonalResult
from polytempo_client.updates.uploads import OwnUploads, Upload

if TYPE_CHECKING:
    from polytempo_client.ask_when import AskWhen

REFUSALS_IN_A_ROW = 5
"""After so many refused updates a client sends no more. Servers ignore a client after 20 refusals by default."""
FLOAT32 = Encodings()

Trained = tuple[Tensors, int] | tuple[Tensors, int, dict[str, Any]]
"""What a training loop returns: the tensors, the number of samples and, if it likes, further arguments of ``push``."""


class Client:
    """A session with a server. ``address`` is HOST:PORT, or several of one service, or ``Servers``. ``token`` is the
    file with the client's secret, or the secret itself. ``ca`` is the certificate of the authority that signed the
    server's; ``certificate`` is this client's own and its key, two files, where the server asks for one. Plaintext only
    with ``insecure`` and only on loopback. With ``keep`` the open task is kept in this file, and what the client
    remembers of its own models beside it; a client that begins anew goes on with both. ``encodings`` let updates and
    models travel in fewer bytes, if the server allows it."""

    def __init__(
        self,
        address: str | Sequence[str] | Servers,
        token: str | Path,
        ca: str | Path | None = None,
        *,
        certificate: Pair | None = None,
        insecure: bool = False,
        keep: str | Path | None = None,
        encodings: Encodings = FLOAT32,
    ) -> None:
        servers = servers_of(address)
        if insecure:
            check_all_loopback(servers)
        elif ca is None:
            raise UserError("A client needs the certificate of the authority that signed the server's: ca='ca.pem'.")
        self._inbox = Inbox(str(servers), None if keep is None else Path(keep))
        self._rule = OwnRule(OwnMemory(None if keep is None else memory_path(Path(keep))))
        self._uploads, self._download = OwnUploads(encodings.upload), encodings.download
        self._changed = self._inbox.changed
        self._refused: list[str] = []
        """Why the last updates in a row were refused."""
        credentials = None
        if not insecure:
            credentials = partial(client_credentials, Path(str(ca)), certificate)
            credentials()  # files that cannot be read are an error now
        self._connection = Connection(
            servers,
            token_of(token),
            credentials,
            lambda: self._hello(**self._inbox.in_hand()),
            self._take,
            self._inbox.note_end,
            certified=certificate is not None,
        )
        self._inbox.open()  # last: nobody closes a Client that could not be made
        self._connection.open()

    @property
    def number(self) -> int | None:
        """Which client this is, as the token says; None before the welcome."""
        return self._inbox.number

    @property
    def schema(self) -> Schema | None:
        """What the server's model looks like; None before the welcome."""
        return self._inbox.schema

    @property
    def seed(self) -> int:
        """The service's."""
        return self._inbox.seed

    def wait_for_welcome(self, timeout: float | None = None) -> tuple[int, Schema, int]:
        """Which client this is, what the server's model looks like, and its seed, as soon as it has said so."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.schema or self._connection.failure, timeout):
                raise TimeoutError(f"{self._connection.servers} has not answered within {timeout} s")
            if self.number is None or self.schema is None:
                assert self._connection.failure is not None
                raise self._connection.failure
            return self.number, self.schema, self.seed

    def pull(self, timeout: float | None = None) -> Model:
        """The model that this client would be served now, without training."""
        head, body = self._connection.ask(pb.Head(pull=pb.Pull()), timeout=timeout)
        return model_of(head.model, body, self._inbox.known_schema)

    def deal(self, x: np.ndarray, y: np.ndarray, task: Task | None = None) -> np.ndarray:
        """Where clients keep models of their own (``serve --personal``): which rows of one's data to train on, for this
        task. One in ten is not among them. These judge models, and no model of this client may be trained on them. A
        client that has settled for its own model alone has all rows; without a task, these nine in ten as well. Call it
        again when the data have changed."""
        number, _, seed = self.wait_for_welcome()
        return self._rule.deal(x, y, jury_key(seed, number), task)

    def start(self, task: Task, score: NamedScore, chosen: int | None = None) -> Tensors:
        """What to train from: the task's model, or where clients keep models of their own, a mixture with one's own.
        ``score(tensors, rows)`` returns for each of these rows its error and half its Brier score (``judged`` computes
        them). Call it again after ``task.refreshes()``; ``push`` takes what came of it."""
        return self._inbox.known_schema.views(self._rule.start(task, score, chosen, self._inbox.known_schema))

    def use(self, score: NamedScore, timeout: float | None = None) -> Tensors:
        """The model to work with now: the served one or, where clients keep models of their own, the mixture with one's
        own that one's jury prefers. ``score`` is that of ``start``."""
        return self._rule.used(self.pull(timeout), score, self._inbox.known_schema)

    @property
    def memory(self) -> OwnMemory:
        """What it remembers of its own models."""
        return self._rule.memory

    @property
    def keeps_task(self) -> bool:
        """Is the open task kept in a file?"""
        return self._inbox.keeps_task

    def branch(self, timeout: float | None = None) -> Membership:
        """Which branch this client belongs to now. Nothing is trained, and no model is sent."""
        head, _ = self._connection.ask(pb.Head(branch=pb.Branch()), timeout=timeout)
        found = head.membership
        return Membership(found.branch, found.version, found.members)

    def task(self, timeout: float | None = None) -> Task:
        """The next task; waits until it is this client's turn. Where it cannot be kept in the file, that is an error
        once: called again, it returns the task."""
        task = self._next_task(timeout)
        error = self._inbox.pop_keep_error()
        if error is not None:
            raise error
        return task

    def _next_task(self, timeout: float | None = None) -> Task:
        inbox = self._inbox
        if self.schema is None:
            self.wait_for_welcome(timeout)  # it says whether a kept task is the next one
        while True:
            session = inbox.sessions
            if inbox.task is None:
                self._connection.ask(pb.Head(ready=pb.Ready()), timeout=timeout)
            with self._changed:
                # A task that was ordered while the connection was broken has to be asked for anew.
                if not self._changed.wait_for(lambda: inbox.task or inbox.sessions != session, timeout):  # noqa: B023
                    raise TimeoutError(f"no task has come within {timeout} s")
                if inbox.task is not None:
                    return inbox.task

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
        accuracy: float | None = None,
        loss: float | None = None,
        jury: JuryScores | None = None,
        kept: Remembered | None = None,
        compared: tuple[float, float] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Hand in the result of a task; when this returns it is safe with the server. Tensors that the task does not
        train may be left out. ``steps``: those done, if not all. With ``ready`` the next task is asked for.
        ``accuracy`` and ``loss`` of the model that was received, on data of one's own, are shown to the operator.
        ``compared`` too: the accuracies of the model that one works with and of one that is trained alone. ``jury`` and
        ``kept`` are for whoever follows the personal rule without ``start``: what the jury says, and what the client
        remembers once the server has the result. After 5 refused updates in a row it sends no more, and is an error at
        once; those that the server's method failed on do not count."""
        self._check_refusals()
        counts = checked_counts(task.work, samples, steps, chosen)
        out = PersonalResult(tensors, jury, kept)
        if jury is None and kept is None:
            out = self._rule.result(task, tensors, counts.chosen, self._inbox.known_schema)
        text, extra = pack_answers(answers or {})
        upload = self._encoded(task, out.tensors, counts.chosen)
        push = pb.Push(
            task=task.number,
            base=upload.base,
            **counts._asdict(),
            answers=text,
            ready=ready,
            encoding=upload.encoding,
            accuracy=accuracy,
            loss=loss,
            jury=None if out.jury is None else jury_message(out.jury),
        )
        if compared is not None:
            push.used, push.alone = compared
        if out.kept is not None:
            self.memory.prepare(task.number, out.kept)
        self._hand_in(task, push, upload, _body(upload, extra), timeout)

    def _encoded(self, task: Task, tensors: Tensors, chosen: int | None) -> Upload:
        """The result as it is sent. One that is no numbers is as good as refused."""
        try:
            return self._uploads.make(task, tensors, chosen, self._inbox.known_schema)
        except NotFiniteError as error:
            self._refused.append(str(error))
            raise

    def _hand_in(self, task: Task, push: pb.Push, upload: Upload, body: list[Buffer], timeout: float | None) -> None:
        try:
            self._connection.ask(pb.Head(push=push), body, timeout)
        except RefusedError as error:
            self._uploads.discard()
            if not error.void and not error.failed and not task.withdrawn:
                self._refused.append(str(error))
            raise
        self._refused.clear()
        self._uploads.confirm(upload)
        self.memory.as_of(task.number)
        with self._changed:
            if self._inbox.task is task:  # the reply brought no new one
                self._inbox.drop_task()

    def run(
        self,
        train: Callable[[Task], Trained],
        updates: int | None = None,
        pushed: Callable[[Task], None] | None = None,
        refusals: int | None = None,
        ask: "AskWhen | None" = None,
    ) -> Task | None:
        """Carry out tasks until so many updates were pushed (default: for ever). ``pushed`` is told of every task whose
        result is safe with the server. With ``ask`` each task is held until its policy has a reason to train. It gives
        up when ``push`` would send no more, or after so many ``refusals`` in a row, also of updates that the server's
        method failed on; that of a task which the server has withdrawn meanwhile does not count. A result with NaN or
        Inf is not sent and counts like one that was refused. A client that keeps its task asks for one after its last
        update too: it is returned, if the reply to that update has brought it. Where a task cannot be kept it goes on
        without."""
        done = in_a_row = 0
        while updates is None or done < updates:
            task = self._next_task()
            if ask is not None:
                number, _, seed = self.wait_for_welcome()
                ask.wait(task, number, seed, self.hold)
            tensors, samples, *more = train(task)
            if task.withdrawn:
                continue
            goes_on = updates is None or done + 1 < updates or self.keeps_task
            arguments = {"ready": goes_on, **(more[0] if more else {})}
            try:
                self.push(task, tensors, samples=samples, **arguments)
                done, in_a_row = done + 1, 0
                if pushed is not None:
                    pushed(task)
            except (RefusedError, NotFiniteError) as error:
                log("refused", level=logging.WARNING, task=task.number, reason=str(error))
                if task.withdrawn:  # while its result was on its way: nothing is wrong with that
                    continue
                in_a_row += not (isinstance(error, RefusedError) and error.void)
                if len(self._refused) >= REFUSALS_IN_A_ROW or (refusals is not None and in_a_row >= refusals):
                    raise
                self._begin_anew()
        return self._inbox.task

    def leave(self, timeout: float | None = None) -> None:
        """Say goodbye: the server counts this client out at once."""
        self._connection.ask(pb.Head(leave=pb.Leave()), timeout=timeout)
        self._inbox.drop_task()
        self.close()

    def close(self) -> None:
        """End the session. The server waits a while for this client to come back."""
        self._connection.close()
        self._inbox.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_refusals(self) -> None:
        """A loop that goes on after refusals would end in the server's quarantine."""
        if len(self._refused) >= REFUSALS_IN_A_ROW:
            raise UserError(
                f"{len(self._refused)} updates in a row were refused, so this client sends no more. The last reason: "
                f"{self._refused[-1].rstrip('.')}. Correct the cause, then make a new Client."
            )

    def _begin_anew(self) -> None:
        """Leave and come again, with nothing in hand."""
        self._connection.ask(pb.Head(leave=pb.Leave()))
        self._inbox.drop_task()
        self._connection.ask(pb.Head(hello=self._hello()))

    def _hello(self, **in_hand: int) -> pb.Hello:
        """A hello that says how messages are to be encoded."""
        uploads = [self._uploads.wish] if self._uploads.wish else []
        downloads = [self._download] if self._download else []
        return pb.Hello(uploads=uploads, downloads=downloads, protocol=PROTOCOL, **in_hand)

    def _take(self, head: pb.Head, body: bytearray) -> None:
        """On the connection's thread."""
        if head.HasField("welcome"):
            self._uploads.agree(head.welcome.upload)
            self.memory.open(head.welcome)
        self._inbox.take(head, body)


def _body(upload: Upload, answers: Sequence[np.ndarray]) -> list[Buffer]:
    arrays = upload.arrays | {f"answer/{i}": array for i, array in enumerate(answers)}
    try:
        entries = tuple(entry_of(name, array) for name, array in arrays.items())
    except WireError as error:
        raise UserError(f"The update cannot be sent: {error}.") from None
    return make_body(entries, list(arrays.values()))
