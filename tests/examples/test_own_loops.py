"""The training loops of examples/clients take part in a service with TLS and tokens, each in a process of its own."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from torch import nn

from polytempo.serve.access.certs import make_certs
from support import ROOT
from support.serving import running

CLIENTS = ROOT / "examples/clients"
UPDATES = 5


def zeros(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


def net() -> dict[str, np.ndarray]:
    made = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    return {name: tensor.numpy() for name, tensor in made.state_dict().items()}


LOOPS = {
    "with_numpy.py": ("numpy", zeros(weight=(3, 4), bias=(3,))),
    "with_sklearn.py": ("sklearn", zeros(coef=(10, 64), intercept=(10,))),
    "with_torch.py": ("torch", net()),
    "with_jax.py": ("jax", zeros(weight=(64, 10), bias=(10,))),
}
"""What each loop needs beside the client, and the model that the server begins with."""


@pytest.mark.parametrize("loop", LOOPS)
def test_a_training_loop_of_ones_own_takes_part(tmp_path: Path, loop: str) -> None:
    framework, initial = LOOPS[loop]
    if find_spec(framework) is None:
        pytest.skip(f"{loop} needs {framework}, which is not installed")
    save_file(initial, tmp_path / "model.safetensors")
    make_certs(tmp_path, [])
    given = {"init": tmp_path / "model.safetensors", "steps": None, "epochs": 1, "batch_size": 50, "lr": 0.05}
    with running(tmp_path, security="tls", clients=1, **given) as server:
        command = [sys.executable, CLIENTS / loop, server.address, tmp_path / "client-0.token", tmp_path / "ca.pem"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert server.host.service.members[0].updates == UPDATES
        assert not server.shared.meters.refusals
        assert server.host.service.strategy.model.version == UPDATES  # type: ignore[attr-defined]


@pytest.mark.parametrize("file", sorted(CLIENTS.glob("*.py")), ids=lambda file: file.stem)
def test_a_training_loop_is_short(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= 40
