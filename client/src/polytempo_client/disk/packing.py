"""Plain data as JSON text, with the arrays in it beside it: the form of states, and of the answers that ride with an
update."""

import json
from collections import deque
from typing import Any

import numpy as np


class Packer:
    """Packs None, numbers, strings, lists, tuples, dicts and deques. A subclass says what else it takes."""

    def pack(self, value: object) -> Any:
        # By exact type: a subclass (a named tuple, a defaultdict) would come back as something else.
        kind = type(value)
        if value is None or kind in (bool, int, float, str):
            return value
        if isinstance(value, np.generic):
            return self.pack(value.item())
        if kind is list:
            return [self.pack(v) for v in value]  # type: ignore[attr-defined]
        if kind is tuple:
            return {"tuple": [self.pack(v) for v in value]}  # type: ignore[attr-defined]
        if isinstance(value, deque):
            return {"deque": [self.pack(v) for v in value], "maxlen": value.maxlen}
        if kind is dict:
            return {"dict": [[self.pack(k), self.pack(v)] for k, v in value.items()]}  # type: ignore[attr-defined]
        return self._pack_other(value)

    def _pack_other(self, value: object) -> Any:
        raise unpackable(value)


def as_text(tree: object) -> str:
    """The JSON text of what a packer made."""
    return json.dumps(tree, separators=(",", ":"))


def unpackable(value: object) -> TypeError:
    kind = type(value)
    hint = "use a dict, which keeps its order" if kind in (set, frozenset) else "use plain data, or @stateful"
    return TypeError(f"{kind.__name__} cannot be part of a state: {hint}")
