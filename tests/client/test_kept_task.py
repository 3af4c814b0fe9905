"""A client that was off comes back with the model that it had, if the server still waits for it."""

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polytempo.core.errors import UserError
from polytempo.serve.client.join import Trained, join
from polytempo.serve.client.own_data import make_join_settings
from polytempo_client import inbox
from polytempo_client.client import Client
from polytempo_client.errors import KeepError
from polytempo_client.keeping import kept_task
from polytempo_client.keeping.kept_task import read_kept
from support.serving import ManualClock, Running, nudge, running, settled


def warnings(monkeypatch: pytest.MonkeyPatch, module: Any) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(module, "log", lambda event, **fields: said.append(str(fields.get("reason"))))
    return said


def push_some(client: Client, updates: int) -> None:
    client.run(lambda task: (nudge(task), 5), updates)


@pytest.mark.parametrize("strategy", ["fedasync", "fedbuff"])
def test_a_client_comes_back_with_an_old_version_and_its_update_is_that_stale(tmp_path: Path, strategy: str) -> None:
    file = tmp_path / "task"
    given = {"parameters": {"buffer_size": 2}} if strategy == "fedbuff" else {}
    with running(tmp_path, strategy, **given) as server:
        with server.client(0, file) as client:
            old = client.task(30)
        with server.client(1) as other:
            push_some(other, 6)
        with server.client(0, file) as again:
            again.wait_for_welcome(30)
            task = again.task(30)
            assert (task.number, task.version, task.count) == (old.number, old.version, old.count)
            assert all(np.array_equal(task.tensors[name], old.tensors[name]) for name in old.tensors)
            assert server.host.service.members[0].tasks == 1
            again.push(task, nudge(task), samples=5, ready=False, timeout=30)
        member = server.host.service.members[0]
    assert (member.updates, member.version, member.staleness) == (1, 0, 6 if strategy == "fedasync" else 3)
    assert not file.exists()


def test_a_client_goes_on_with_its_task_also_after_the_server_was_restarted(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        with server.client(0, tmp_path / "task") as client:
            old = client.task(30)
        with server.client(1) as other:
            push_some(other, 2)
    with running(tmp_path, port=server.port) as server, server.client(0, tmp_path / "task") as again:
        assert again.task(30).number == old.number
        push_some(again, 1)
        assert server.host.service.members[0].staleness == 2


def test_the_model_is_not_sent_again_to_a_client_that_kept_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path) as server:
        with server.client(0, tmp_path / "task") as client:
            client.task(30)
        monkeypatch.setattr(server.host.service, "task_again", lambda client: pytest.fail("sent again"))
        with server.client(0, tmp_path / "task") as again:
            push_some(again, 1)
    assert server.host.service.updates == 1


def test_what_was_sent_while_a_client_was_off_reaches_it(tmp_path: Path) -> None:
    with running(tmp_path, "support.serving:Refresher") as server:
        with server.client(0, tmp_path / "task") as client:
            client.task(30)
        with server.client(1) as other:
            push_some(other, 2)
        with server.client(0, tmp_path / "task") as again:
            task = again.task(30)
            settled(again)
            assert [model.version for model in task.refreshes()] == [2]  # the last one says it all
            again.push(task, nudge(task), samples=5, timeout=30)
        assert server.host.service.members[0].version == 2


def test_a_task_for_which_the_server_waits_no_longer_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, said, clock = tmp_path / "task", warnings(monkeypatch, inbox), ManualClock()
    with running(tmp_path, seconds=clock, patience=100.0) as server:
        with server.client(0, file) as client:
            old = client.task(30)
        with server.client(1) as other:
            settled(other)  # the server has seen the other one go
            clock.now = 101.0
            server.host.tick()
            settled(other)
            assert not server.host.service.is_member(0)
        with server.client(0, file) as again:
            assert again.task(30).number > old.number
    assert "the server waits for it no longer" in said[0]
    assert len(said) == 1


def test_the_file_is_there_for_its_owner_only_and_as_long_as_the_task_is_open(tmp_path: Path) -> None:
    file = tmp_path / "task"
    with running(tmp_path) as server, server.client(0, file) as client:
        for number in range(2):
            task = client.task(30)
            assert file.stat().st_mode & 0o777 == 0o600
            kept = read_kept(file)
            assert kept is not None
            assert (kept.task.number, kept.task.count) == (task.number, number)
            client.push(task, nudge(task), samples=5, ready=number == 0, timeout=30)
        assert not file.exists()
        client.task(30)
        client.leave(30)
        assert not file.exists()


@pytest.mark.parametrize(
    "content", [b"", b"nonsense", b"\xff\xfe\x00", b'{"format": 1}\n', b'{"format": 99}\nbody', b"[]\n"]
)
def test_a_file_that_holds_no_task_is_named_and_the_client_begins_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    file, said = tmp_path / "task", warnings(monkeypatch, kept_task)
    file.write_bytes(content)
    with running(tmp_path) as server, server.client(0, file) as client:
        push_some(client, 1)
    assert server.host.service.updates == 1
    plain = f"{file} holds no kept task: it is damaged, of another version, or something else. The client begins"
    assert said == [f"{plain} without it. The file is now task.aside-1."]
    assert (tmp_path / "task.aside-1").read_bytes() == content


def test_a_file_that_cannot_be_read_is_named_and_the_client_begins_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, said = tmp_path / "task", warnings(monkeypatch, kept_task)
    file.touch()

    def forbidden(*_: Any) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(kept_task, "read_plain", forbidden)
    assert read_kept(file) is None
    assert said == [
        f"{file} cannot be read: Permission denied. The client begins without it. The file is now task.aside-1."
    ]
    file.touch()
    monkeypatch.setattr(Path, "rename", forbidden)
    assert read_kept(file) is None
    assert said[1:] == [f"{file} cannot be read: Permission denied. The client begins without it."]


def test_a_damaged_model_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, said = tmp_path / "task", warnings(monkeypatch, kept_task)
    with running(tmp_path) as server, server.client(0, file) as client:
        client.task(30)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert read_kept(file) is None
    assert "damaged" in said[0]


@pytest.mark.parametrize(("other", "reason"), [("server", "another server"), ("client", "another client")])
def test_a_task_of_another_server_or_client_is_not_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str, reason: str
) -> None:
    file, said = tmp_path / "task", warnings(monkeypatch, inbox)
    (tmp_path / "other").mkdir()
    with running(tmp_path) as server, running(tmp_path / "other") as elsewhere:
        with server.client(0, file) as client:
            client.task(30)
        number, where = (0, elsewhere) if other == "server" else (1, server)
        with where.client(number, file) as client:
            push_some(client, 1)
        assert where.host.service.members[number].updates == 1
    assert reason in said[0]


def test_a_place_where_nothing_can_be_kept_is_an_error(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "missing/task"):
        with pytest.raises(UserError, match="cannot be kept"):
            Client("127.0.0.1:1", "secret", insecure=True, keep=place)


def test_a_client_that_cannot_write_its_task_works_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = warnings(monkeypatch, inbox)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(kept_task, "write_bytes", full)
    with running(tmp_path) as server, server.client(0, tmp_path / "task") as client:
        push_some(client, 1)
        assert server.host.service.updates == 1
    assert "No space left on device" in said[0]


def test_a_task_that_cannot_be_kept_is_an_error_once_and_is_open_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with running(tmp_path) as server, server.client(0, tmp_path / "task") as client:
        with monkeypatch.context() as patch:
            patch.setattr(kept_task, "write_bytes", full)
            with pytest.raises(KeepError, match=r"task cannot be kept in .*/task: No space left on device. Make room"):
                client.task(30)
        task = client.task(30)
        client.push(task, nudge(task), samples=5, timeout=30)
        assert server.host.service.updates == 1
        assert client.task(30).number > task.number
        assert (tmp_path / "task").exists()


def test_join_with_a_kept_task_closes_and_goes_on_later(tmp_path: Path) -> None:
    file, trained = tmp_path / "task", []

    def take_part(server: Running) -> None:
        join(lambda: server.client(0, keep=file), make_join_settings(engine="eager"), 1, trained.append)

    with running(tmp_path, init=None) as server:
        take_part(server)
        assert server.host.service.is_member(0)
        kept = read_kept(file)
        assert kept is not None
        assert kept.task.number == server.host.service.open_task(0)
        with server.client(1) as other:
            push_some(other, 2)
        take_part(server)
        assert server.host.service.members[0].staleness == 2
    assert [it.version for it in trained if isinstance(it, Trained)] == [0, 1]
