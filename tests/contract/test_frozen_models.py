"""A run of a model with a frozen encoder is, bit for bit, that of the model that has it as a constant function outside:
frozen parts are nowhere."""

from typing import Any

import pytest

from polytempo import simulate
from polytempo.strategies import strategies

SHORT = {"clients": 3, "updates": 6, "steps": 2, "batch_size": 8, "workers": 1, "partition": "dirichlet:0.3"}
OWN = {
    "the personal rule": {"strategy": "concerto", "personal": True},
    "encodings": {"strategy": "fedasync", "upload": "topk:0.2", "download": "fp16"},
    "privacy": {"strategy": "fedasync", "privacy": "1:0.1"},
    "robust mixing": {"strategy": "casa", "robust": "median"},
    "mask and layers": {"strategy": "support.frozen:Partly", "upload": "fp16"},
    "adam": {"strategy": "fedavg", "optimizer": "adam"},
}


def both(**settings: Any) -> list[Any]:
    return [simulate(**SHORT, **settings, model=f"support.frozen:{side}") for side in ("inside", "outside")]


CASES = {name: {"strategy": name} for name in strategies} | OWN


@pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
def test_frozen_parts_are_nowhere(settings: dict[str, Any]) -> None:
    inside, outside = both(**settings)
    assert inside.digest == outside.digest
    assert inside.updates == 6
