"""How clusters come about."""

from dataclasses import dataclass

from polytempo.core.state import stateful


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
