"""How much memory a process may use, and a file of it."""

import os
from pathlib import Path

import pytest

from polytempo_client.disk.reading import memory_limit
from polytempo_client.memory import usable_bytes


def say(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """The process is in a cgroup with this ``memory.max``."""
    files = {"/proc/self/cgroup": "0::/some/group\n", "/sys/fs/cgroup/some/group/memory.max": f"{limit}\n"}
    monkeypatch.setattr(Path, "read_text", lambda path: files[str(path)])


def test_a_process_may_use_what_its_cgroup_allows_and_a_file_half_of_that(monkeypatch: pytest.MonkeyPatch) -> None:
    say(monkeypatch, "1000000")
    assert (usable_bytes(), memory_limit()) == (1_000_000, 500_000)


def test_without_a_limit_it_is_the_machines_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    say(monkeypatch, "max")
    assert usable_bytes() == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_a_system_that_does_not_say_sets_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    say(monkeypatch, "max")
    monkeypatch.delattr(os, "sysconf")
    assert memory_limit() >= 1 << 40
