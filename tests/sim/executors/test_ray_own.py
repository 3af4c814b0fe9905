"""What the user wrote reaches the workers of a cluster, named as ``file.py:name`` or given as Python objects."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from polytempo import simulate
from support.clusters import Cluster

WORLD: dict[str, Any] = {"clients": 4, "updates": 16, "steps": 3, "seed": 1}
OWN = '''
import torch
from torch import nn
from torch.nn import functional as F

import scale_beside
from polytempo.methods import Asked, Asynchronous, question


class Scaled(nn.Module):
    def forward(self, x):
        return x * scale_beside.SCALE


def net(inputs):
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), Scaled(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, inputs.classes))


def smoothed(outputs, labels):
    return F.cross_entropy(outputs, labels, label_smoothing=0.1)


def in_top_two(outputs, labels):
    return (outputs.topk(2).indices == labels[:, None]).any(1).float()


def data():
    rows = torch.arange(200) % 10
    return torch.eye(64)[rows].view(-1, 1, 8, 8).numpy(), rows.numpy()


@question("largest-weight")
def largest_weight(asked: Asked):
    return float(asked.trained.abs().max()) * scale_beside.SCALE


class Asking(Asynchronous):
    """Mixes by the largest weight of a client's model, which it asks for."""

    def order_for(self, client, now):
        return self.train(client, self.model, questions=("largest-weight",))

    def updated(self, update, now):
        self.model.mix(update.weights, min(update.answers["largest-weight"], 1.0))
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "scale_beside.py").write_text("SCALE = 0.5\n")


def check_same_bits(cluster: Cluster, **given: Any) -> None:
    words = "threads", cluster.word
    assert len({simulate(executor=word, workers=2, **given, **WORLD).digest for word in words}) == 1


def test_code_in_files_reaches_the_workers(cluster: Cluster, own: None) -> None:
    named = {"data": "own.py:data", "model": "own.py:net", "loss": "own.py:smoothed", "metric": "own.py:in_top_two"}
    check_same_bits(cluster, strategy="own.py:Asking", **named)


def test_python_objects_reach_the_workers(cluster: Cluster) -> None:
    scale = 0.5
    rng = np.random.default_rng(0)

    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * scale

    check_same_bits(
        cluster,
        strategy="fedasync",
        data=(rng.random((120, 6), np.float32), rng.integers(0, 3, 120)),
        model=lambda: nn.Sequential(Scaled(), nn.Linear(6, 3)),
        loss=lambda outputs, y: nn.functional.cross_entropy(outputs, y) * scale,
        metric=lambda outputs, y: (outputs.argmax(1) == y).float() * scale,
    )
