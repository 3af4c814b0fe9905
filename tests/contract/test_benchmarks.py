"""Every benchmark can be loaded: what it imports from the package is there. None is run."""

import runpy
from pathlib import Path

import pytest

from support import ROOT

ELSEWHERE = ("pfl_fedavg", "flower_fedavg")
"""They run in environments of other simulators."""
BENCHMARKS = sorted(path for path in (ROOT / "benchmarks").rglob("*.py") if path.stem not in ELSEWHERE)


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_a_benchmark_loads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(path.parent)  # as when Python runs the file
    assert runpy.run_path(str(path), run_name="loaded")["__doc__"]
