"""How the kernels are compiled, and how wide a vector is on this CPU."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numba.core import config
from numba.core.codegen import get_host_cpu_features

SETTINGS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}
"""Contract: a * b + c may be rounded once, as torch does it."""
kernel: Callable[..., Any] = njit(**SETTINGS)
inlined: Callable[..., Any] = njit(**SETTINGS, inline="always")
"""LLVM optimises a called function again with each of its callers: these are the callers of the large ones."""

ZERO = np.float32(0)
ONE = np.float32(1)


def _has_wide_vectors() -> bool:
    """Does the CPU that numba compiles for have AVX-512: vectors of 16 floats, and 32 registers of them?"""
    features = getattr(config, "CPU_FEATURES", None) or get_host_cpu_features()
    return "+avx512f" in features.split(",")


WIDE = _has_wide_vectors()
LANES = 16 if WIDE else 8
"""Floats of a vector."""


def sources() -> str:
    """numba's cache on disk looks at one file only; a compiled function that holds this is made anew when any file of
    the package changes."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
