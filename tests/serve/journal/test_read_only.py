"""A file system that becomes read-only while a service runs on it, as after an error of the disk."""

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from polytempo.core.errors import PassingError, UserError
from polytempo.serve.journal.opening import open_service
from support.serving import Running, nudge, running, tiny_settings, until

pytestmark = pytest.mark.usefixtures("short_pauses", "bodies_lie_apart")


def refused(*_: Any, **__: Any) -> int:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def become_read_only(server: Running, patch: pytest.MonkeyPatch) -> None:
    server.host.journal.store._database.execute("PRAGMA query_only = ON")
    for call in ("pwritev", "posix_fallocate"):
        patch.setattr(os, call, refused)
    patch.setattr("polytempo.serve.server.status.write_bytes", refused)


def test_a_service_on_a_read_only_disk_acknowledges_nothing_and_goes_on_when_it_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path) as server, server.client(0) as client:
        task = client.task(30)
        answered = threading.Event()

        def push() -> None:
            client.push(task, nudge(task), samples=5, timeout=60)
            answered.set()

        with monkeypatch.context() as patch:
            become_read_only(server, patch)
            pushing = threading.Thread(target=push, daemon=True)
            pushing.start()
            until(lambda: server.shared.meters.refusals["journal"] > 2)
            assert not server.host.health().is_healthy
            assert not answered.is_set()
            assert server.host.service.updates == 0
            server.host.journal.store._database.execute("PRAGMA query_only = OFF")
        pushing.join(60)
        assert answered.is_set()
        until(lambda: server.host.health().is_healthy)
        assert server.host.service.updates == 1


def test_a_service_on_a_read_only_disk_still_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path) as server, server.client(0) as client:
        client.run(lambda task: (nudge(task), 5), updates=1)
        become_read_only(server, monkeypatch)
        monkeypatch.setattr("tempfile.mkstemp", refused)
        server.stop()
        assert server.host.error is None
    monkeypatch.undo()
    with running(tmp_path) as again:
        assert again.host.service.updates == 1


@pytest.mark.parametrize("begun", [False, True])
def test_a_start_in_a_read_only_directory_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    if begun:
        open_service(tmp_path / "journal", tiny_settings(tmp_path)).journal.close()
    monkeypatch.setattr(os, "mkdir", refused)
    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(UserError, match="Read-only file system") as error:
        open_service(tmp_path / "journal", tiny_settings(tmp_path))
    assert not isinstance(error.value, PassingError)  # exit code 2: it does not pass by itself
