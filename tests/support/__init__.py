"""What several tests share: builders, small worlds, services and clients inside a test."""

from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
"""The repository."""

Call = Callable[..., tuple[int, str, str]]
"""The command line as a function of its arguments: exit code, stdout, stderr."""
