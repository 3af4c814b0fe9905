"""Python as it is where some packages are not installed."""

from collections.abc import Iterable

HEAVY = {
    *("torch", "scipy", "pydantic", "numba", "sklearn", "safetensors", "cryptography", "matplotlib"),
    *("typer", "rich", "aiohttp", "prometheus_client", "PIL"),
}
"""What a client on a small device does not have."""

SCRIPT = """
import importlib.abc, sys

ABSENT = {names!r}

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

for name in ABSENT:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Absent())
"""


def without(names: Iterable[str]) -> str:
    """The beginning of a script in which these packages cannot be imported."""
    return SCRIPT.format(names=sorted(names))
