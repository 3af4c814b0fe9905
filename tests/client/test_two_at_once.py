"""One client's token, kept task or run directory in the hands of two programs at once."""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from polytempo.core.errors import PassingError, UserError
from polytempo.sim.directory import LOCK, claimed
from polytempo_client.client import Client
from polytempo_client.disk.locks import locked
from polytempo_client.errors import RefusedError
from polytempo_client.keeping.kept_task import read_kept
from polytempo_client.session import connection
from support.serving import nudge, running

pytestmark = pytest.mark.usefixtures("short_pauses")


def test_a_task_that_two_programs_answer_is_applied_once_and_the_other_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both go on with the same kept task, from copies of the file."""
    monkeypatch.setattr(connection, "TAKEN_OVER", 10**6)  # neither gives up
    files = [tmp_path / "one", tmp_path / "two"]
    with running(tmp_path) as server:
        with server.client(0, files[0]) as client:
            task = client.task(30)
        files[1].write_bytes(files[0].read_bytes())
        start, ends = threading.Barrier(2), []

        def answer(file: Path) -> None:
            with server.client(0, file) as one:
                mine = one.task(60)
                start.wait(60)
                try:
                    one.push(mine, nudge(mine), samples=5, ready=False, timeout=60)
                    ends.append("taken")
                except (RefusedError, UserError, TimeoutError) as error:
                    ends.append(str(error))

        threads = [threading.Thread(target=answer, args=(file,)) for file in files]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert len(ends) == 2
        assert "taken" in ends
        events = [event for _, event in server.host.journal.events(0)]
        assert [event.push.task for event in events if event.push is not None].count(task.number) == 1
        assert server.host.service.updates == 1


def test_a_second_program_with_the_same_kept_task_is_told_at_once(tmp_path: Path) -> None:
    with running(tmp_path) as server, server.client(0, tmp_path / "task") as client:
        task = client.task(30)
        with pytest.raises(PassingError, match="Another Client or process keeps its task"):
            server.client(0, tmp_path / "task")
        client.push(task, nudge(task), samples=5, timeout=30)
        kept = read_kept(tmp_path / "task")
        assert kept is not None
        assert kept.task.number != task.number


def test_the_kept_task_is_free_again_when_its_client_could_not_be_made(tmp_path: Path) -> None:
    keep = tmp_path / "task"
    with pytest.raises(UserError, match="token") as kept_alive:  # the error holds on to what was half made
        Client("127.0.0.1:1", tmp_path / "missing", insecure=True, keep=keep)
    with locked(keep.with_name("task.lock"), seconds=0.0):
        assert kept_alive.tb is not None


def test_the_kept_task_is_free_again_when_its_program_has_ended(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        with server.client(0, tmp_path / "task") as client:
            task = client.task(30)
        with server.client(0, tmp_path / "task") as again:
            assert again.task(30).number == task.number


def test_the_kept_task_is_free_also_when_its_program_was_killed(tmp_path: Path) -> None:
    holds = (
        "import sys; from pathlib import Path; from polytempo_client.keeping.kept_task import claim; "
        "held = claim(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    with running(tmp_path) as server:
        arguments: list[Any] = [sys.executable, "-c", holds, tmp_path / "task"]
        with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            with pytest.raises(PassingError):
                server.client(0, tmp_path / "task")
            other.kill()
        with server.client(0, tmp_path / "task") as client:
            client.task(30)


def test_a_client_whose_folder_takes_no_lock_does_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    with running(tmp_path) as server:
        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", forbidden)
            client = server.client(0, tmp_path / "task")
        with client:
            client.task(30)


def test_a_run_directory_is_one_programs(tmp_path: Path) -> None:
    with (
        locked(tmp_path / LOCK, seconds=0),
        pytest.raises(PassingError, match="Another process is writing a run"),
        claimed(tmp_path),
    ):
        pass
