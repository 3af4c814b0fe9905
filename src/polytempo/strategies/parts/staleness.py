"""Staleness functions s(tau): how much an update counts that is tau versions old (Xie et al., 2019, section 5.2)."""

from dataclasses import dataclass
from math import inf
from typing import Annotated, Any

from pydantic import BeforeValidator

from polytempo.core.stateful import stateful


@stateful
@dataclass(frozen=True)
class Constant:
    """``s = 1``"""

    def __call__(self, tau: int) -> float:
        return 1.0

    def __str__(self) -> str:
        return "constant"


@stateful
@dataclass(frozen=True)
class Polynomial:
    """``s = (1 + tau)^-a``"""

    a: float = 0.5

    def __call__(self, tau: int) -> float:
        return float((1 + tau) ** -self.a)

    def __str__(self) -> str:
        return f"polynomial:{self.a:g}"


@stateful
@dataclass(frozen=True)
class Hinge:
    """``s = 1 if tau <= b else 1 / (a (tau - b) + 1)``"""

    a: float = 10.0
    b: float = 4.0

    def __call__(self, tau: float) -> float:
        return 1.0 if tau <= self.b else 1.0 / (self.a * (tau - self.b) + 1)

    def __str__(self) -> str:
        return f"hinge:{self.a:g}:{self.b:g}"


_kinds: dict[str, type] = {"constant": Constant, "polynomial": Polynomial, "hinge": Hinge}


def parse_staleness(given: Any) -> Any:
    """``constant``, ``polynomial:0.5`` or ``hinge:10:4``; objects pass as they are."""
    if not isinstance(given, str):
        return given
    kind, *numbers = given.split(":")
    try:
        made = _kinds[kind](*map(float, numbers))
        if not all(0 <= value < inf for value in vars(made).values()):
            raise ValueError
        return made
    except (KeyError, TypeError, ValueError):
        raise ValueError("expected constant, polynomial:A or hinge:A:B with finite numbers of at least 0") from None


Staleness = Annotated[Constant | Polynomial | Hinge, BeforeValidator(parse_staleness)]
