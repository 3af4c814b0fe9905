"""Locks between processes: one holder at a time, and none that outlives its process."""

import errno
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from polytempo_client.disk import locks
from polytempo_client.disk.locks import LockedError, locked

HOLD = """
import sys
from pathlib import Path
from polytempo_client.disk.locks import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_lock_that_is_held_is_refused_and_free_afterwards(tmp_path: Path) -> None:
    refused = pytest.raises(LockedError, match="locked by another process")
    with locked(tmp_path / "lock"), refused, locked(tmp_path / "lock", seconds=0):
        pass
    with locked(tmp_path / "lock", seconds=0):
        pass


def test_a_lock_ends_with_a_process_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(LockedError), locked(tmp_path / "lock", seconds=0):
            pass
        holder.kill()
        holder.wait()
    with locked(tmp_path / "lock", seconds=0):
        pass


def test_who_waits_gets_the_lock_when_it_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = locked(tmp_path / "lock")
    holder.__enter__()
    monkeypatch.setattr(locks.time, "sleep", lambda _: holder.__exit__(None, None, None))
    with locked(tmp_path / "lock"):
        pass


def test_an_error_that_is_no_lock_is_not_taken_for_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), locked(tmp_path / "nowhere/lock", seconds=0):
        pass


@pytest.mark.parametrize("code", [errno.EACCES, errno.EDEADLK])
def test_windows_locks_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    held: list[tuple[int, int]] = []

    def locking(descriptor: int, how: int, length: int) -> None:
        if held:
            raise OSError(code, os.strerror(code))
        held.append((how, length))

    monkeypatch.setitem(sys.modules, "msvcrt", types.SimpleNamespace(LK_NBLCK=2, locking=locking))
    monkeypatch.setattr(locks, "sys", types.SimpleNamespace(platform="win32"))
    with locked(tmp_path / "lock", seconds=0):
        assert held == [(2, 1)]
        with pytest.raises(LockedError), locked(tmp_path / "lock", seconds=0):
            pass
