"""The server's side of methods: base, one file per method, and the parts that several share. Other packages take the
names below from here."""

from polytempo.strategies import methods as _methods  # noqa: F401  registers them
from polytempo.strategies.base.strategy import (
    RECONSTRUCTED,
    Setting,
    Strategy,
    is_reconstructed,
    make_strategy,
    strategies,
    strategy,
)

__all__ = [
    "RECONSTRUCTED",
    "Setting",
    "Strategy",
    "is_reconstructed",
    "make_strategy",
    "strategies",
    "strategy",
]
