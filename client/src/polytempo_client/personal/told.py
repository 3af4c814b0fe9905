"""What server and client tell each other where clients keep models of their own."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class JuryScores:
    """What rows that a client does not train on say of mixtures of its own model and the one it was sent, from all its
    own to all the other (``rule.py``): sums over the rows."""

    rows: int
    errors: tuple[float, ...]
    briers: tuple[float, ...]
    """Half of the Brier score: from 0 to 1, as an error."""
    changed: bool = False
    """Most of the client's rows are new to its own model."""


SOLO = "solo"
"""A parameter of the rule ``jury``: if it is there, a client that would keep something of its own model keeps all."""
SETTLED = "settled"
"""Another, beside ``SOLO``: that is decided for the whole federation, and not only tried out."""
TUTTI = "tutti"
"""Another: the client starts from the served model alone."""


@dataclass(frozen=True, slots=True)
class Personal:
    """The client keeps a model of its own by a rule. ``jury``: it decides by rows that it does not
    train on how much of its own it starts from and uses, and reports what they said."""

    rule: str = "jury"
    parameters: dict[str, float] = field(default_factory=dict)
    """Of the rule."""
    pool: JuryScores | None = None
    """The mean over the clients' juries, as of one row; None while too few have reported."""
