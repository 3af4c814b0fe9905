"""Compiled functions, kept on disk where that is possible."""

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``njit``, with a cache on disk unless neither the package's nor the user's cache directory can be written."""

    def compile_later(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            return njit(**options, cache=True)(function)
        except RuntimeError:
            return njit(**options)(function)

    return compile_later
