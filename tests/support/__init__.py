"""What several tests share: builders, small worlds, services and clients inside a test."""

from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
"""The repository."""

PACKAGE, CLIENT = ROOT / "src/polytempo", ROOT / "client/src/polytempo_client"
"""The code of the two distributions."""


def named_in_docs(path: str) -> Path:
    """The file that the docs name: of Polytempo, or with its package's name in front, of the client's distribution."""
    return (CLIENT.parent if path.startswith(f"{CLIENT.name}/") else PACKAGE) / path


Call = Callable[..., tuple[int, str, str]]
"""The command line as a function of its arguments: exit code, stdout, stderr."""
