"""Lives of a service, to be recorded: ``python -m support.lives ROOT`` leads each in its own directory below ROOT,
process after process.

Marks say what may come back after a crash. ``may``: from now on the service may have this digest too. ``is``: clients
have been told, it has this digest. ``backup`` and ``restored``: so have the backup, and the service made from it."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from polytempo.core.state import pack, unpack
from polytempo.serve.access.tokens import make_tokens
from polytempo.serve.journal import snapshots
from polytempo.serve.journal.files import store
from polytempo.serve.journal.journal import Journal
from polytempo.serve.journal.settings import ServiceSettings
from polytempo.serve.paths import JOURNAL
from polytempo.serve.process.backup import back_up, restore
from polytempo.serve.state.events import Event
from support.serving import Hosted, restarted, tiny_settings

MARKS = "marks"
SERVICE, BACKUP, RESTORED = "made/federation", "kept/backup", "made/restored"
STRATEGY = "support.serving:Brittle"
SMALL, LARGE = 8, 3000
"""Numbers in an answer: the first makes a body that lies in its row, the second one that does not."""


def settings(root: Path) -> ServiceSettings:
    return tiny_settings(root.parent, STRATEGY)


def mark(root: Path, kind: str, said: str = "") -> None:
    with (root / MARKS).open("a") as marks:
        marks.write(json.dumps([kind, said]))


class Life:
    """A service in one process, from its start on."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.served = Hosted(root / SERVICE, settings=settings(root))
        # Often, so that a short life sees the write-ahead log begin anew.
        self.served.host.journal.store.query("PRAGMA wal_autocheckpoint = 12")
        self.mark("is", self.served.digest())
        self._append, self._handle = self.served.host.journal.append, self.served.host.handle
        self.served.host.journal.append = self._mark_and_append  # type: ignore[method-assign]
        self.served.host.handle = self._handle_and_mark  # type: ignore[method-assign]
        self.served.clock.now = 1.0

    def mark(self, kind: str, said: str) -> None:
        mark(self.root, kind, said)

    def _mark_and_append(self, events: Sequence[Event]) -> None:
        service = self.served.opened.begin()
        service.load_state(unpack(*pack(self.served.host.service.save_state())))
        before = service.digest()
        try:
            for event in events:
                service.apply(event)
            self.mark("may", service.digest())
        except ZeroDivisionError:  # what the strategy cannot take is void
            self.mark("may", before)
        self._append(events)

    def _handle_and_mark(self, requests: list) -> None:  # type: ignore[type-arg]
        self._handle(requests)
        if not self.served.shared.meters.journal_failing:
            self.mark("is", self.served.digest())

    def join(self, *clients: int) -> None:
        for client in clients:
            self.served.hello(client)
            self.served.ready(client)

    def push(self, client: int, numbers: int = SMALL, **answers: object) -> bool:
        """Was it acknowledged?"""
        self.served.clock.now += 1.0
        reply = self.served.push(client, answers={"more": torch.full((numbers,), self.served.clock.now), **answers})
        return not reply.refusal.again

    def push_break(self, client: int) -> None:
        """What the strategy cannot take; everybody has to connect anew."""
        self.push(client, **{"break": True})
        for each in (0, 1):
            self.served.reconnect(each, self.served.task(each))

    def push_group(self) -> None:
        """Updates of both clients that are written with one sync, one with a large body and one with a small one."""
        self.served.clock.now += 1.0
        answers = [{"more": torch.ones(numbers)} for numbers in (LARGE, SMALL)]
        pushed = [self.served.pushed(client, answers=answers[client]) for client in (0, 1)]
        self.served.host.handle([self.served.request(client, *pushed[client]) for client in (0, 1)])

    @contextmanager
    def failing(self, pattern: str) -> Iterator[None]:
        """Syncs of files that match fail."""
        failing = Path(os.environ["RECORDER_FAILING"])
        failing.write_text(pattern)
        try:
            yield
        finally:
            failing.unlink()

    def stop(self) -> None:
        host = self.served.host
        host.snapshots.finish(host.service)
        host.write_status(stopping=True)
        host.journal.close()
        self.mark("is", self.served.digest())


# A life in which every sync succeeds.


def begun(root: Path) -> None:
    make_tokens(root / SERVICE, 2)
    life = Life(root)
    life.join(0, 1)
    for numbers in (SMALL, LARGE, SMALL, SMALL):
        life.push(0, numbers)
        life.push(1, numbers)
    life.push_group()
    life.push_break(1)
    for _ in range(3):
        life.push_group()
    life.stop()


def continued(root: Path) -> None:
    """Ends without a stop."""
    life = Life(root)
    life.join(0, 1)
    for _ in range(3):
        life.push(1, LARGE)
        life.push(0)
    kill_oneself()


def copied(root: Path) -> None:
    """A backup of what was killed, and a service from it."""
    back_up(root / SERVICE, root / BACKUP)
    mark(root, "backup", restarted(root / SERVICE, settings(root)))
    restore(root / BACKUP, root / RESTORED, allowed=[STRATEGY], unsigned=True)
    mark(root, "restored", restarted(root / RESTORED, settings(root)))
    life = Life(root)
    life.join(0, 1)
    life.push(0, LARGE)
    life.stop()


# One in which syncs fail.


def log_fails(root: Path) -> None:
    life = Life(root)
    life.join(0, 1)
    assert life.push(0, LARGE)
    assert life.push(1, LARGE)
    with life.failing("*-wal"):
        assert not life.push(0, LARGE)
        assert not life.push(1, LARGE)
        kill_oneself()


def files_fail(root: Path) -> None:
    life = Life(root)
    life.join(0, 1)
    for pattern in ("*-wal", "*.bodies", "*/journal", "*/.snapshot-*", "*/journal.sqlite", "*/journal*"):
        with life.failing(pattern):
            for _ in range(2):
                life.push(0, LARGE)
                life.push(1)
        if pattern != "*.bodies":
            life.served.host.handle([])  # it looks whether the journal can be written again
        assert life.push(1, LARGE)
        assert life.push(0)
    with life.failing("*-wal"):
        life.push_break(1)
        life.push(0, LARGE)
    with life.failing("*/journal.sqlite"):
        life.stop()


def log_fails_again(root: Path) -> None:
    life = Life(root)
    life.join(0, 1)
    life.push(0, LARGE)
    with life.failing("*-wal"):
        life.push_group()
        kill_oneself()


def goes_on(root: Path) -> None:
    life = Life(root)
    life.join(0, 1)
    life.push(1, LARGE)
    life.push(0, LARGE)
    life.stop()


# One in which the log of a killed server stays in use: while somebody reads, SQLite does not move its content.


def log_fails_once(root: Path) -> None:
    life = Life(root)
    life.join(0, 1)
    with life.failing("*-wal"):
        assert not life.push(0, LARGE)
        kill_oneself()


def goes_on_while_read(root: Path) -> None:
    reader = Journal(root / SERVICE / JOURNAL)
    life = Life(root)
    life.join(0, 1)
    life.push(1, LARGE)
    life.push(0)
    reader.close()
    kill_oneself()


def kill_oneself() -> None:
    Path(os.environ["RECORDER_FAILING"]).unlink(missing_ok=True)
    os.kill(os.getpid(), signal.SIGKILL)


LIVES: dict[str, list[Callable[[Path], None]]] = {
    "plain": [begun, continued, copied],
    "failing": [log_fails, files_fail, log_fails_again, goes_on],
    "read": [log_fails_once, goes_on_while_read],
}


def lead(root: Path, parts: list[Callable[[Path], None]]) -> None:
    """Each part in a process of its own, which has nothing to import: it is forked."""
    root.mkdir()
    store.SMALL_BYTES, store.SEGMENT_BYTES, snapshots.SNAPSHOT_EVENTS = 2000, 30_000, 9
    for part in parts:
        mark(root, "process")
        child = os.fork()
        if not child:
            try:
                part(root)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) not in (0, -signal.SIGKILL):
            sys.exit(f"{part.__name__} failed")


if __name__ == "__main__":
    for name, parts in LIVES.items():
        lead(Path(sys.argv[1]) / name, parts)
