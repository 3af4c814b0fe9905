"""What a process did to the files below a directory, in order: recorder.c, preloaded into it, writes it down."""

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from support import ROOT

EXHAUSTIVE = os.environ.get("POLYTEMPO_CRASH_STATES") == "all"
"""Are all states looked at (``make crash-states``), or some?"""
SOURCE = Path(__file__).parent / "recorder.c"
HEAD = struct.Struct("=Iiq2I")
TIME_LIMIT = 300.0
"""Seconds that a recorded process may take before it counts as hanging."""


class Operation(NamedTuple):
    """One call that succeeded (but for ``f``: a sync that failed)."""

    kind: str
    """open, close, write, truncate, allocate, rename, unlink, mkdir, sync, failed sync: the first letter."""
    file: int
    """The descriptor, or -1."""
    number: int
    """Flags of open, offset of a write, size of a truncation."""
    payload: bytes
    """Path, two paths, or what was written."""


class Recorded(NamedTuple):
    operations: list[Operation]
    root: Path
    """What lies below it was recorded."""
    exit_code: int


def record(directory: Path, *command: str) -> Recorded:
    """Run ``python COMMAND ROOT`` and record what it does below the new directory ROOT. The environment names the file
    that lets syncs fail: RECORDER_FAILING."""
    compiler = compiler_or_skip()
    library, root, to = directory / "recorder.so", directory / "root", directory / "record"
    options = ["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run([compiler, *options, str(SOURCE), "-ldl", "-lpthread"], check=True, timeout=TIME_LIMIT)
    root.mkdir()
    environment = os.environ | {
        "LD_PRELOAD": str(library),
        "RECORDER_BELOW": str(root),
        "RECORDER_TO": str(to),
        "RECORDER_FAILING": str(directory / "failing"),
        "PYTHONPATH": os.pathsep.join([*sys.path, str(ROOT / "tests")]),
    }
    ended = subprocess.run([sys.executable, *command, str(root)], env=environment, timeout=TIME_LIMIT)
    return Recorded([*_read(to)], root, ended.returncode)


def compiler_or_skip() -> str:
    """Whoever asks for all states must not take none for a success."""
    compiler = shutil.which("cc")
    if sys.platform == "linux" and compiler is not None:
        return compiler
    why = "NO POWER CUT WAS TRIED: recording what a process does to files takes Linux and a C compiler (cc)"
    if EXHAUSTIVE:
        pytest.fail(why)
    pytest.skip(why)


def _read(path: Path) -> Iterator[Operation]:
    content, at = path.read_bytes(), 0
    while at < len(content):
        kind, file, number, size, _ = HEAD.unpack_from(content, at)
        at += HEAD.size + size
        yield Operation(chr(kind), file, number, content[at - size : at])
