"""What the peers share: MNIST from idx files, our models, and plain local SGD. Needs numpy and torch only."""

import argparse
import gzip
import json
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLIENTS, PER_ROUND, STEPS, BATCH, LR = 100, 10, 60, 10, 0.05


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=("mlp", "cnn"))
    parser.add_argument("rounds", type=int)
    parser.add_argument("data_dir", type=Path)
    return parser.parse_args()


def mnist(data_dir: Path, part: str) -> tuple[Tensor, Tensor]:
    pixels = gzip.decompress((data_dir / f"mnist/{part}-images-idx3-ubyte.gz").read_bytes())[16:]
    labels = gzip.decompress((data_dir / f"mnist/{part}-labels-idx1-ubyte.gz").read_bytes())[8:]
    images = np.frombuffer(pixels, np.uint8).reshape(-1, 1, 28, 28).astype(np.float32)
    return torch.from_numpy((images / 255 - 0.1307) / 0.3081), torch.from_numpy(
        np.frombuffer(labels, np.uint8).astype(np.int64)
    )


def rows_of(samples: int) -> list[np.ndarray]:
    """As many samples for every client, at random."""
    return np.array_split(np.random.default_rng(0).permutation(samples), CLIENTS)


def layers(model: str) -> list[nn.Module]:
    if model == "mlp":
        return [nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10)]
    return [
        nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10),
    ]  # fmt: skip


def accuracy(module: nn.Module, x: Tensor, y: Tensor) -> float:
    module.eval()
    with torch.inference_mode():
        right = [(module(x[i : i + 1000]).argmax(1) == y[i : i + 1000]).float().sum() for i in range(0, len(x), 1000)]
    module.train()
    return float(sum(right) / len(x))


def train(module: nn.Module, x: Tensor, y: Tensor) -> None:
    """One client's local steps."""
    optimizer = torch.optim.SGD(module.parameters(), lr=LR)
    order, module = torch.randperm(len(x)), module.train()
    for step in range(STEPS):
        batch = order[step * BATCH % len(x) :][:BATCH]
        optimizer.zero_grad()
        F.cross_entropy(module(x[batch]), y[batch]).backward()
        optimizer.step()


def tell(began: float, right: float) -> None:
    """The last line of stdout: seconds of the rounds with the first and the last evaluation, and the accuracy."""
    print(json.dumps({"run": time.perf_counter() - began, "accuracy": right}), flush=True)
