"""What bit-identical results depend on besides the settings."""

import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path

ENGINE = 2
"""Counted up with every change after which equal settings train or score to other bits."""


def versions() -> dict[str, str]:
    """What a bit-identical repetition needs to be the same."""
    return dict(_found())


def machine() -> dict[str, str]:
    """The same of a machine, with what its CPU can do: that decides how code is compiled."""
    import llvmlite.binding as llvm  # here, because a light client has no compiler

    features = llvm.get_host_cpu_features().flatten()
    return {**versions(), "cpu type": llvm.get_host_cpu_name(), "cpu features": features}


@cache
def _found() -> tuple[tuple[str, str], ...]:
    packages = ("polytempo", "torch", "numpy", "scipy", "scikit-learn", "numba")
    found = ((name, version(name)) for name in packages)
    return *found, ("engine", str(ENGINE)), ("python", platform.python_version()), ("cpu", _cpu())


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
