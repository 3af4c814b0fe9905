"""A replay that fails on what the strategy took before: nothing acknowledged is dropped."""

from pathlib import Path

import pytest

from polytempo.core.events import Update
from polytempo.serve.journal import applying
from polytempo.serve.journal.applying import Applying
from polytempo.serve.journal.failures import UnreplayableError
from polytempo.serve.journal.opening import open_service
from polytempo.serve.paths import APPLYING
from polytempo.serve.storage.errors import UnwritableError
from support import bad_methods
from support.serving import Hosted, hosted, join_all, refused, restarted

pytestmark = pytest.mark.usefixtures("store")

BAD = "support.bad_methods:Bad"
TORCH = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 400000000 bytes.")
THREAD = RuntimeError("can't start new thread")


def with_acknowledged_last_update(served: Hosted, to: Path) -> Path:
    """A crash after event 6, the update of client 1, was acknowledged."""
    join_all(served)
    served.push(0)
    assert served.push(1).WhichOneof("kind") == "task"
    return served.copied(to)


def fail_on_client_1(patch: pytest.MonkeyPatch, error: BaseException) -> None:
    real = bad_methods.Bad.updated

    def updated(method: bad_methods.Bad, update: Update, now: float) -> None:
        real(method, update, now)
        if update.client == 1:
            raise error

    patch.setattr(bad_methods.Bad, "updated", updated)


@pytest.mark.parametrize("error", [TORCH, THREAD, ImportError("no module"), KeyError("renamed")], ids=str)
def test_an_acknowledged_update_of_the_last_batch_is_not_dropped(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosted(tmp_path, BAD) as served:
        directory = with_acknowledged_last_update(served, tmp_path / "crash")
        with monkeypatch.context() as broken:
            fail_on_client_1(broken, error)
            for _ in range(2):
                with pytest.raises(UnreplayableError, match=r"event 6 \(update of client 1\).*Nothing was changed"):
                    open_service(directory / "journal", served.settings)
        assert restarted(directory, served.settings) == served.digest()


@pytest.mark.parametrize(
    "error", [TORCH, THREAD, ImportError("no module"), OSError(24, "files"), MemoryError()], ids=repr
)
def test_where_the_surroundings_are_wrong_nobody_is_advised_to_give_updates_up(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosted(tmp_path, BAD) as served:
        join_all(served)
        for client in (0, 1, 0, 1):
            served.push(client)
        directory = served.copied(tmp_path / "crash")
        fail_on_client_1(monkeypatch, error)
        with pytest.raises(UnreplayableError, match=r"event 6 .*Nothing was changed.* start again") as refusal:
            open_service(directory / "journal", served.settings)
        assert "--" not in str(refusal.value)


def test_where_the_strategy_is_wrong_the_message_says_what_can_be_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosted(tmp_path, BAD) as served:
        directory = with_acknowledged_last_update(served, tmp_path / "crash")
        fail_on_client_1(monkeypatch, RuntimeError("shapes cannot be multiplied"))
        with pytest.raises(UnreplayableError, match=r"--accept-version; or start with --leave-out 6 .*--lose-tail"):
            open_service(directory / "journal", served.settings)


def test_a_death_in_the_replay_of_an_acknowledged_update_is_no_reason_to_drop_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosted(tmp_path, BAD) as served:
        directory = with_acknowledged_last_update(served, tmp_path / "crash")
        marker = Applying(directory / "journal" / APPLYING)
        marker.begin(6)
        marker.close()
        with monkeypatch.context() as broken:
            fail_on_client_1(broken, TORCH)
            with pytest.raises(UnreplayableError):
                open_service(directory / "journal", served.settings)
        assert restarted(directory, served.settings) == served.digest()


def test_after_a_start_of_the_machine_no_event_is_known_to_be_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, boot = tmp_path / APPLYING, tmp_path / "boot_id"
    monkeypatch.setattr(applying, "BOOT", boot)
    boot.write_text("one")
    marker = Applying(path)
    marker.clear(last=4)
    marker.close()
    assert not Applying(path).never_applied(4)
    assert Applying(path).never_applied(5)
    boot.write_text("another")
    assert not Applying(path).never_applied(5)


def test_an_update_that_was_refused_on_a_full_disk_stays_refused_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosted(tmp_path, BAD) as served:
        join_all(served)
        marks = served.host.journal.marks

        def write_if_there_is_room(_: object) -> None:
            if marks.void:
                raise UnwritableError("database or disk is full")

        monkeypatch.setattr(marks, "write", write_if_there_is_room)
        assert refused(served.push(0, answers={"harm": "exit"}), "could not take it")
        assert restarted(served.copied(tmp_path / "crash"), served.settings) == served.digest()
