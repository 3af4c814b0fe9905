"""How a host ends."""

from dataclasses import dataclass

from polytempo.serve.server.requests import RESTARTS


@dataclass(frozen=True)
class HostEnding:
    """Of one host."""

    reason: str = RESTARTS
    """What clients are told."""
    successor: str | None = None
    """The server that is to lead next, if it is not whoever comes first."""
    is_lost: bool = False
    """May it write nothing more?"""
    with_snapshot: bool = True
    """Another version of the code, and another kind of CPU, can go on from nothing else."""
