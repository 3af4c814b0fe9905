"""A disk that is full, or not ours."""

import errno
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from polytempo.core.errors import PassingError, UserError
from polytempo.serve.journal import snapshots as snapshots_module
from polytempo.serve.journal.files import store as store_module
from polytempo.serve.journal.files.database import connect, transaction, unwritable
from polytempo.serve.journal.journal import Journal
from polytempo.serve.journal.opening import open_service
from polytempo.serve.paths import DATABASE
from polytempo.serve.storage.errors import JournalError
from support.serving import Hosted, hosted, join_all, restarted, some_events, tiny_settings

pytestmark = pytest.mark.usefixtures("bodies_lie_apart")

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def fail(*_: Any) -> None:
    raise FULL


def write_a_part(file: int, buffers: Any, at: int) -> int:
    return os.write(file, b"".join(buffers)[:8])


class FullDatabase:
    """A connection on which one statement fails."""

    def __init__(self, database: sqlite3.Connection, statement: str) -> None:
        self._database, self._statement = database, statement

    def execute(self, sql: str, *values: Any) -> Any:
        if sql.startswith(self._statement):
            raise sqlite3.OperationalError("database or disk is full")
        return self._database.execute(sql, *values)

    def executemany(self, sql: str, rows: Any) -> Any:
        if sql.startswith(self._statement):
            self._database.executemany(sql, rows[:1])
            raise sqlite3.OperationalError("database or disk is full")
        return self._database.executemany(sql, rows)


class FailingSync(FullDatabase):
    """A connection whose commits reach the write-ahead log and are reported as failed: the sync was."""

    def execute(self, sql: str, *values: Any) -> Any:
        done = self._database.execute(sql, *values)
        if sql.startswith(self._statement):
            raise sqlite3.OperationalError("disk I/O error")
        return done


def break_database(patch: pytest.MonkeyPatch, served: Hosted, broken: type[FullDatabase], statement: str) -> None:
    store = served.host.journal.store
    patch.setattr(store, "_database", broken(store._database, statement))  # type: ignore[attr-defined]


@pytest.mark.parametrize("point", ["pwritev", "part", "fdatasync", "BEGIN", "INSERT", "COMMIT", "segment"])
def test_a_full_disk_acknowledges_nothing_and_damages_nothing(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosted(tmp_path) as served:
        some_events(served)
        before, last = served.digest(), served.host.journal.last
        with monkeypatch.context() as full:
            if point in ("pwritev", "fdatasync"):
                full.setattr(os, point, fail)
            elif point == "part":
                full.setattr(os, "pwritev", write_a_part)
                full.setattr(os, "pwrite", fail)
            elif point == "segment":
                full.setattr(store_module, "SEGMENT_BYTES", 1)
                full.setattr(os, "open", fail)
            else:
                break_database(full, served, FullDatabase, point)
            group = [served.request(client, *served.pushed(client)) for client in (0, 1)]
            served.host.handle(group)
            for request in group:
                reply = served.sessions[request.session.client].reply(request.head.request)
                assert reply is not None
                assert reply[0].refusal.again
        assert served.digest() == before
        assert served.host.journal.last == last
        assert restarted(served.copied(tmp_path / "crash"), served.settings) == before
        served.push(1)
        served.push(0)
        assert served.digest() != before
        assert restarted(served.copied(tmp_path / "later"), served.settings) == served.digest()


def test_after_a_sync_that_failed_and_a_kill_all_that_was_acknowledged_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosted(tmp_path) as served:
        some_events(served)
        before = served.events()
        with monkeypatch.context() as failing:
            break_database(failing, served, FailingSync, "COMMIT")
            refused = served.pushed(0)
            assert served.ask(0, *refused).refusal.again
        again = served.after_crash(tmp_path / "kill")
        *found, doubtful = again.events()
        assert list(map(str, found)) == list(map(str, before))
        assert doubtful.push is not None
        assert doubtful.push.task == refused[0].push.task
        updates = again.host.service.updates
        again.hello(0, doubtful.push.task)
        assert again.ask(0, *refused).WhichOneof("kind") == "task"
        assert again.host.service.updates == updates
        again.close()


def test_bodies_of_a_commit_in_doubt_stay_until_another_took_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosted(tmp_path) as served:
        some_events(served)
        (path,) = served.directory.glob("*.bodies")
        before, body = path.stat().st_size, sum(map(len, served.pushed(0)[1]))
        with monkeypatch.context() as failing:
            break_database(failing, served, FullDatabase, "COMMIT")
            for _ in range(3):
                assert served.push(0).refusal.again
                assert path.stat().st_size == before + body
        served.host.handle([])
        assert path.stat().st_size == before
        served.push(0)
        assert restarted(served.copied(tmp_path / "later"), served.settings) == served.digest()


def test_a_file_of_bodies_whose_sync_failed_is_not_written_to_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosted(tmp_path) as served:
        some_events(served)
        before = {path: path.read_bytes() for path in served.directory.glob("*.bodies")}
        with monkeypatch.context() as failing:
            failing.setattr(os, "fdatasync", fail)
            assert served.push(0).refusal.again
        served.push(0)
        served.push(1)
        assert {path: path.read_bytes() for path in before} == before
        assert len(list(served.directory.glob("*.bodies"))) == len(before) + 1
        assert restarted(served.copied(tmp_path / "later"), served.settings) == served.digest()


def test_a_new_file_of_bodies_whose_sync_failed_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hosted(tmp_path) as served:
        join_all(served)
        monkeypatch.setattr(store_module, "SEGMENT_BYTES", 1)
        served.push(0)
        for point in ("fsync", "fdatasync", "fdatasync"):
            failed = served.host.journal.store._segment
            with monkeypatch.context() as failing:
                failing.setattr(os, point, fail)
                assert served.push(0).refusal.again
        served.push(0)
        assert served.host.journal.store._segment is not failed
        assert restarted(served.copied(tmp_path / "later"), served.settings) == served.digest()


def test_what_a_killed_server_left_is_synced_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hosted(tmp_path) as served:
        some_events(served)
        killed = served.copied(tmp_path / "kill") / "journal"
        synced: list[str] = []
        monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.readlink(f"/proc/self/fd/{file}")))
        Journal(served.directory).close()
        assert not synced  # the server that runs does so itself
        Journal(killed).close()
        assert synced == [str(killed / "journal.sqlite-wal")]


def test_a_disk_has_room_again_when_what_did_not_fit_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def allocate(file: int, begins: int, size: int) -> None:
        asked.append(size)
        os.pwrite(file, bytes(size), begins)
        if len(asked) == 1:
            raise FULL

    with hosted(tmp_path) as served:
        some_events(served)
        before = served.digest()
        with monkeypatch.context() as full:
            full.setattr(os, "pwritev", fail)
            full.setattr(os, "posix_fallocate", allocate)
            assert served.push(0).refusal.again
            assert served.shared.meters.journal_failing
            served.host.handle([])
            assert served.shared.meters.journal_failing
            served.host.handle([])
            assert not served.shared.meters.journal_failing
        assert asked == [sum(map(len, served.pushed(0)[1]))] * 2
        assert served.digest() == before
        served.push(0)
        assert restarted(served.copied(tmp_path / "later"), served.settings) == served.digest() != before


def test_a_disk_without_room_for_another_file_is_full_until_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosted(tmp_path) as served:
        some_events(served)
        monkeypatch.setattr(store_module, "SEGMENT_BYTES", 1)
        with monkeypatch.context() as full:
            full.setattr(os, "open", fail)
            assert served.push(0).refusal.again
            served.host.handle([])
            assert served.shared.meters.journal_failing
        served.host.handle([])
        assert not served.shared.meters.journal_failing
        served.push(0)
        assert restarted(served.copied(tmp_path / "later"), served.settings) == served.digest()


def test_a_database_that_cannot_be_opened_is_a_matter_of_rights_only_if_it_may_not_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = sqlite3.OperationalError("unable to open database file")
    error.sqlite_errorname = "SQLITE_CANTOPEN"
    assert isinstance(unwritable(tmp_path, error), PassingError)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert not isinstance(unwritable(tmp_path, error), PassingError)


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (PermissionError(errno.EACCES, "Permission denied"), False),
        (OSError(errno.EROFS, "Read-only file system"), False),
    ],
)
def test_what_is_a_matter_of_rights_is_not_tried_again(tmp_path: Path, error: OSError, passes: bool) -> None:
    assert isinstance(unwritable(tmp_path, error), PassingError) is passes


def test_a_database_that_may_not_be_written_is_a_matter_of_rights_too(tmp_path: Path) -> None:
    connect(tmp_path).close()
    database = sqlite3.connect(f"file:{tmp_path / DATABASE}?mode=ro", uri=True, isolation_level=None)
    with pytest.raises(JournalError, match="readonly") as refused, transaction(database, tmp_path):
        database.execute("DELETE FROM events")
    database.close()
    assert not isinstance(refused.value, PassingError)


def test_a_full_disk_at_a_snapshot_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots_module, "SNAPSHOT_EVENTS", 3)
    with hosted(tmp_path) as served:
        with monkeypatch.context() as full:
            full.setattr(store_module, "save_packed", fail)
            some_events(served)
        assert served.host.journal.snapshots() == [0]
        assert restarted(served.copied(tmp_path / "crash"), served.settings) == served.digest()


def test_something_due_waits_while_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hosted(tmp_path, "support.serving:Impatient") as served:
        served.hello(0)
        with monkeypatch.context() as full:
            break_database(full, served, FullDatabase, "COMMIT")
            served.at(5.0)
            assert served.host.service.strategy.fired_at == []
            assert served.host._seconds_to_next() >= 1.0
        served.at(5.0)
        assert served.host.service.strategy.fired_at == [("shrink", 5.0)]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    service = tiny_settings(tmp_path)
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(UserError, match=r"Cannot keep a journal in .*: Permission denied"):
        open_service(tmp_path / "closed" / "journal", service)


def test_a_directory_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    service = tiny_settings(tmp_path)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"Cannot keep a journal in .*: Not a directory"):
        open_service(tmp_path / "file" / "journal", service)
