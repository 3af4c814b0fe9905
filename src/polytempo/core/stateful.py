"""Which classes may be part of a state. The declaration is apart from ``state``, so that plain records can be declared
without torch."""

import dataclasses
from typing import Self, TypeVar

from polytempo_client.personal.rule import ClientMemory
from polytempo_client.personal.told import JuryScores, Personal

C = TypeVar("C", bound=type)

_classes: dict[str, type] = {
    "polytempo.core.orders.JuryScores": JuryScores,
    "polytempo.core.orders.Personal": Personal,
    "polytempo_client.personal.rule.ClientMemory": ClientMemory,
}
"""By their names in states. Records of the client's distribution, which knows no states, are declared here. Their names
are those that they have in files."""
_names = {cls: name for name, cls in _classes.items()}


def stateful(cls: C) -> C:
    """Let objects of this class be part of a state: a dataclass (its fields), or a class with ``save_state`` and
    ``load_state``."""
    if not dataclasses.is_dataclass(cls) and not hasattr(cls, "load_state"):
        raise TypeError(f"{cls.__name__} is neither a dataclass nor has it save_state and load_state")
    _classes[state_name(cls)] = cls
    return cls


class Attributes:
    """The base of a stateful class whose state is all of its attributes."""

    def save_state(self) -> dict[str, object]:
        return dict(vars(self))

    @classmethod
    def load_state(cls, saved: dict[str, object]) -> Self:
        made = cls.__new__(cls)
        vars(made).update(saved)
        return made


def state_name(cls: type) -> str:
    """The name of a class in a state."""
    return _names.get(cls, f"{cls.__module__}.{cls.__qualname__}")


def is_stateful(cls: type) -> bool:
    return _classes.get(state_name(cls)) is cls


def stateful_class(name: str) -> type:
    """The class with this name in a state."""
    return _classes[name]
