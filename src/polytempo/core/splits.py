"""How clusters come about."""

from dataclasses import dataclass
from typing import Literal

from polytempo.core.stateful import stateful


@stateful
@dataclass(frozen=True, slots=True)
class Split:
    """One cluster became several. Its number ends with it; the parts have new ones."""

    time: float
    cluster: int
    parts: tuple[int, ...]
    """The numbers of the new clusters."""
    members: tuple[tuple[int, ...], ...]
    """The clients of each new cluster at that moment."""
    why: dict[str, float]
    """The figures that decided it, by name, for example ``eigengap`` and ``decay``."""


@stateful
@dataclass(frozen=True, slots=True)
class Regrouping:
    """Clients went from one cluster to another together: an ``expansion`` begins the cluster that they go to, a
    ``merge`` ends the one that they come from. The other one goes on under its number."""

    time: float
    kind: Literal["expansion", "merge"]
    source: int
    target: int
    clients: tuple[int, ...]
    """Who moved."""
    why: dict[str, float]
    """The figures that decided it, by name, for example ``divergence``."""
