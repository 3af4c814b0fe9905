"""What the server has sent: which client this is, and its open task, which is kept in a file if that is wanted."""

import logging
import threading
from pathlib import Path
from typing import IO

from polytempo_client.errors import KeepError
from polytempo_client.keeping.kept_task import KeptTask, check_folder, claim, forget, read_kept, write_kept
from polytempo_client.logs import log
from polytempo_client.model.schema import Schema
from polytempo_client.protocol import wire_pb2 as pb
from polytempo_client.protocol.tasks import Model, Task, model_of, task_of
from polytempo_client.protocol.welcome import schema_in


class Inbox:
    """Of one client. The connection's thread puts messages in; whoever waits for one waits for ``changed``."""

    def __init__(self, servers: str, keep: Path | None) -> None:
        self.changed = threading.Condition()
        self.number: int | None = None
        self.schema: Schema | None = None
        self.seed = 0
        self.task: Task | None = None
        self.sessions = 0
        """How often a session has begun, or ended for good."""
        self._servers, self._keep = servers, keep
        self._claim: IO[bytes] | None = None
        self.welcome = pb.Welcome()
        self.kept: KeptTask | None = None
        """Of an earlier session: the server has not said yet whether it still waits for it."""
        self._not_kept: KeepError | None = None

    def open(self) -> None:
        """Read the file of the kept task, and keep others from it."""
        if self._keep is not None:
            check_folder(self._keep)
            self._claim = claim(self._keep)
            self.kept = read_kept(self._keep)

    def close(self) -> None:
        if self._claim is not None:
            self._claim.close()

    @property
    def keeps_task(self) -> bool:
        return self._keep is not None

    @property
    def known_schema(self) -> Schema:
        assert self.schema is not None  # nothing else comes before the welcome
        return self.schema

    def in_hand(self) -> dict[str, int]:
        """What a hello says of the open task."""
        with self.changed:
            if self.kept is not None:
                return {"task": self.kept.task.number, "heeded": self.kept.task.number}
            return {} if self.task is None else {"task": self.task.number, "heeded": self.task.heeded}

    def pop_keep_error(self) -> KeepError | None:
        """Why the last task could not be kept, said once."""
        error, self._not_kept = self._not_kept, None
        return error

    def drop_task(self) -> None:
        """There is nothing to go on with."""
        with self.changed:
            self.task = None
            if self._keep is not None:
                forget(self._keep)

    # On the connection's thread.

    def note_end(self) -> None:
        """There will be no more sessions."""
        with self.changed:
            self.sessions += 1
            self.changed.notify_all()

    def take(self, head: pb.Head, body: bytearray) -> None:
        with self.changed:
            kind = head.WhichOneof("kind")
            if kind == "welcome":
                self._welcomed(head.welcome)
            elif kind == "task":
                self.task = task_of(head.task, body, self.known_schema)
                self._write_kept(head.task, body)
            elif kind == "model":
                self._refresh(model_of(head.model, body, self.known_schema), head.model.task)
            elif kind == "report" and self.task is not None and head.report.task == self.task.number:
                self.task.reported = True
                self.task.heeded = head.report.number
            self.changed.notify_all()

    def _welcomed(self, welcome: pb.Welcome) -> None:
        self.number, self.seed = welcome.client, welcome.seed
        self.schema = schema_in(welcome)
        self.welcome = welcome
        self.sessions += 1
        if self.kept is not None:
            self._take_up(self.kept, welcome)
        elif self.task is not None and self.task.number != welcome.task:
            self.task.withdrawn = True
            self.drop_task()

    def _take_up(self, kept: KeptTask, welcome: pb.Welcome) -> None:
        """Go on with the task of an earlier session, if that makes sense."""
        self.kept = None
        void = kept.void(self._servers, welcome)
        if void is None:
            self.task = task_of(kept.task, kept.body, self.known_schema)
            log("goes on", task=kept.task.number, version=kept.task.version)
        else:
            self.drop_task()
            log("begins anew", level=logging.WARNING, task=kept.task.number, reason=f"The kept task is void: {void}.")

    def _write_kept(self, ordered: pb.Task, body: bytearray) -> None:
        if self._keep is None:
            return
        try:
            write_kept(self._keep, KeptTask(self._servers, self.welcome, ordered, body))
        except KeepError as error:
            log("task not kept", level=logging.WARNING, file=str(self._keep), reason=str(error))
            self._not_kept = error

    def _refresh(self, model: Model, task: int) -> None:
        if self.task is not None and task == self.task.number:
            self.task.news.append(model)
            self.task.heeded = model.number
