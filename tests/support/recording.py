"""Recorded results: ten methods on digits, as they were when the record was made.

Run ``python -m support.recording`` in tests/ to make the record anew, if a change is meant to change numbers."""

import hashlib
import json
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
from safetensors.numpy import load_file

from polytempo import simulate

RECORD = Path(__file__).parent.parent / "contract" / "recorded.json"
WORLD: dict[str, Any] = {
    "clients": 12,
    "updates": 96,
    "partition": "groups:3",
    "devices": "slow:0.3x5",
    "batch_size": 16,
    "steps": 6,
    "lr": 0.1,
    "seed": 5,
}
CASES: dict[str, dict[str, Any]] = {
    "standalone": {},
    "fedavg": {},
    "fedasync": {},
    "fedbuff": {},
    "fedcompass": {},
    "casa": {},
    "ifca-async": {},
    "pace": {},
    "cdfl": {"partition": "rotations:3"},
    "echopfl": {},
    "cdfl, clipped": {"partition": "rotations:3", "clip": 1.5},
    "fedasync, mixed": {"robust": "median:5", "clip": 2.0},
    "casa, mixed": {"robust": "trimmed:6:0.2", "attack": "sign-flip:0.2:3"},
    "cfl, mixed": {"robust": "median:5", "clip": 2.0},
    "echopfl, mixed": {"robust": "median:5", "clip": 2.0},
}


def result_of(case: str) -> dict[str, Any]:
    """What a case comes to: the accuracy of the served models, and a hash of their weights."""
    with tempfile.TemporaryDirectory() as directory:
        run = simulate(case.split(",")[0], out=directory, **{**WORLD, **CASES[case]})
        tensors = load_file(Path(directory) / "models.safetensors")
    sha = hashlib.sha256()
    for name in sorted(tensors):
        sha.update(name.encode())
        sha.update(tensors[name].tobytes())
    return {"accuracy": run.accuracy, "weights": sha.hexdigest()}


def machine() -> dict[str, str]:
    """What equal bits depend on besides our own code."""
    features = hashlib.sha256(llvm.get_host_cpu_features().flatten().encode()).hexdigest()[:16]
    packages = {name: version(name) for name in ("torch", "numpy", "numba", "scikit-learn")}
    return {"cpu": llvm.get_host_cpu_name(), "features": features, **packages}


if __name__ == "__main__":
    record = {"machine": machine(), "results": {case: result_of(case) for case in CASES}}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
