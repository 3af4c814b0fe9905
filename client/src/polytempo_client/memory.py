"""How much memory there is."""

import os
import sys
from contextlib import suppress
from pathlib import Path


def usable_bytes() -> int:
    """Memory that the process may use: the machine's, or what its cgroup allows. Without bound where the system does
    not say."""
    limits = [sys.maxsize]
    if hasattr(os, "sysconf"):  # not on Windows
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with suppress(OSError, ValueError, IndexError):  # no cgroups here, or "max"
        group = Path("/proc/self/cgroup").read_text().splitlines()[-1].partition("::")[2]
        limits.append(int(Path(f"/sys/fs/cgroup{group.rstrip('/')}/memory.max").read_text()))
    return min(limits)
