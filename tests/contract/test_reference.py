"""Whole runs against plain torch: every client takes full-batch steps, so that nothing is random, and the server's
formula is applied by hand to the updates in the order in which they arrived."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from polytempo import Run, simulate
from polytempo.learn.flat import initial_vector
from polytempo.sim.directory import MODELS
from polytempo.world.data import load_dataset

SIZES = [20, 30, 40, 50]
ROWS = np.split(np.random.default_rng(0).permutation(1797)[:300], [*np.cumsum(SIZES), 180, 220, 260])
TRAIN, TEST = ROWS[:4], ROWS[4:]


@pytest.fixture
def world(tmp_path):
    """A partition file and initial weights; both are used through the interface that scripts use."""
    offsets = {"train_off": np.cumsum([0, *SIZES]), "test_off": np.cumsum([0, *map(len, TEST)])}
    np.savez(tmp_path / "p.npz", train_idx=np.concatenate(TRAIN), test_idx=np.concatenate(TEST), **offsets)
    torch.manual_seed(3)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    np.save(tmp_path / "init.npy", initial_vector(module).numpy())
    return tmp_path, module


def run(world, strategy: str, **parameters) -> tuple[Run, Tensor]:
    directory, _ = world
    done = simulate(
        strategy,
        parameters=parameters,
        partition=f"file:{directory / 'p.npz'}",
        init=directory / "init.npy",
        devices="slow:0.5x3",
        out=directory / "run",
        **{"batch_size": 100, "steps": 3, "lr": 0.1, "momentum": 0.5, "weight_decay": 1e-3, "updates": 12},
    )
    tensors = load_file(directory / "run" / MODELS["served"])
    return done, torch.cat([tensors[f"0.{name}"].view(-1) for name in ("1.weight", "1.bias", "3.weight", "3.bias")])


def trained(module: nn.Module, start: Tensor, client: int, mu: float = 0.0) -> Tensor:
    dataset = load_dataset("digits")
    rows = TRAIN[client]
    x, y = torch.from_numpy(dataset.x[rows]), torch.from_numpy(dataset.y[rows])
    nn.utils.vector_to_parameters(start.clone(), module.parameters())
    optimizer = torch.optim.SGD(module.parameters(), 0.1, 0.5, weight_decay=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        away = nn.utils.parameters_to_vector(module.parameters()) - start
        (nn.functional.cross_entropy(module(x), y) + mu / 2 * away.square().sum()).backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(module.parameters()).detach()


@pytest.mark.parametrize(("strategy", "mu"), [("fedavg", 0.0), ("fedprox", 0.5)])
def test_rounds_are_those_of_plain_torch(world, strategy, mu):
    _, served = run(world, strategy, **({"mu": mu} if mu else {}))
    _, module = world
    w = initial_vector(module)
    for _ in range(3):
        w = sum(size / sum(SIZES) * trained(module, w, client, mu) for client, size in enumerate(SIZES))
    assert (served - w).abs().max() < 1e-6


@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_fedasync_is_that_of_plain_torch(world, rho):
    done, served = run(world, "fedasync", proximal=rho)
    _, module = world
    versions = [initial_vector(module)]
    for row in done.update_log:
        staleness = len(versions) - 1 - row["version"]
        assert row["staleness"] == staleness
        new = trained(module, versions[row["version"]], row["client"], rho)
        versions.append(torch.lerp(versions[-1], new, 0.6 / (1 + staleness) ** 0.5))
    assert (served - versions[-1]).abs().max() < 1e-6
    assert done.mean_staleness > 0


def test_fedbuff_is_that_of_plain_torch(world):
    done, served = run(world, "fedbuff", buffer_size=3)
    _, module = world
    versions, deltas = [initial_vector(module)], []
    for row in done.update_log:
        start = versions[row["version"]]
        delta = trained(module, start, row["client"]) - start
        deltas.append(delta / (len(versions) - row["version"]) ** 0.5)
        if len(deltas) == 3:
            versions.append(versions[-1] + sum(deltas) / 3)
            deltas = []
    assert (served - versions[-1]).abs().max() < 1e-6


def test_accuracy_is_the_mean_over_clients_of_their_own_test_rows(world):
    done, served = run(world, "fedavg")
    _, module = world
    nn.utils.vector_to_parameters(served, module.parameters())
    dataset = load_dataset("digits")
    accuracies = [
        (module(torch.from_numpy(dataset.x[rows])).argmax(1).numpy() == dataset.y[rows]).mean() for rows in TEST
    ]
    assert done.accuracy == pytest.approx(np.mean(accuracies))
