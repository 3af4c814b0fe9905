"""The fused engine against the eager one."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from polytempo.learn.eager import EagerEngine
from polytempo.learn.fused.engine import FusedEngine
from polytempo.learn.job import Job
from polytempo_client.streams import stream
from support.jobs import MODELS, OPTIONS, SMALL, by_torch, largest, named_job, some_job


def one_ulp_away(w: Tensor, purpose: str) -> Tensor:
    up = torch.from_numpy(stream(0, purpose).random(len(w)) < 0.5)
    return torch.where(up, torch.nextafter(w, torch.tensor(torch.inf)), torch.nextafter(w, torch.tensor(-torch.inf)))


def own_drift(engine: EagerEngine, job: Job, tries: int = 6) -> float:
    """How far the result moves when the start weights change by one unit in the last place."""
    result = engine.train(job)
    starts = [one_ulp_away(job.start, f"ulp {i}") for i in range(tries)]
    return max(largest(engine.train(replace(job, start=start)) - result) for start in starts)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", MODELS)
def test_fused_equals_eager_after_five_steps(name: str, option: str) -> None:
    module, job = named_job(name)
    job = OPTIONS[option](job)
    distance = (FusedEngine(module).train(job) - EagerEngine(module).train(job)).abs()
    if option == "adam":
        # it divides a gradient by its own size: where one cancels to almost 0, its rounding error is a step's length
        assert largest(distance) <= job.lr
        assert float((distance > 1e-5).float().mean()) <= 1e-4
    else:
        assert largest(distance) <= 1e-5


@pytest.mark.parametrize("name", MODELS)
def test_fused_is_no_further_from_eager_after_fifty_steps_than_eager_from_itself_one_ulp_away(name: str) -> None:
    module, job = named_job(name, steps=50)
    eager = EagerEngine(module)
    # 1.01: where a ReLU flips, it moves both about equally far
    assert largest(FusedEngine(module).train(job) - eager.train(job)) <= 1.01 * own_drift(eager, job)


@pytest.mark.parametrize("option", ["momentum", "adam", "cosine", "everything"])
@pytest.mark.parametrize("name", ["mlp", "har-mlp", SMALL])
def test_with_options_too_the_distance_after_fifty_steps_is_rounding(name: str, option: str) -> None:
    module, job = named_job(name, steps=50)
    job = OPTIONS[option](job)
    eager = EagerEngine(module)
    # 3: momentum sums up the rounding errors of both engines in all steps, a changed start is one such error
    assert largest(FusedEngine(module).train(job) - eager.train(job)) <= 3 * own_drift(eager, job)


@pytest.mark.parametrize("name", ["mlp", "har-mlp"])
def test_fused_is_as_near_to_exact_arithmetic_as_eager(name: str) -> None:
    module, job = named_job(name, steps=50)
    job = OPTIONS["momentum"](job)
    exact = by_torch(module, job, torch.float64)
    fused, eager = FusedEngine(module).train(job), EagerEngine(module).train(job)
    assert largest(fused - exact) <= 2 * largest(eager - exact)


def variants() -> dict[str, nn.Module]:
    return {
        "no activation": nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(3 * 7 * 9, 10)),
        "pool without relu": nn.Sequential(nn.Conv2d(2, 3, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10)),
        "relu last": nn.Sequential(nn.Conv2d(2, 5, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(60, 10)),
        "nested, padded": nn.Sequential(
            nn.Sequential(nn.Conv2d(2, 7, 3, padding=1), nn.ReLU(), nn.Conv2d(7, 4, 1), nn.ReLU(), nn.MaxPool2d(2)),
            nn.Sequential(nn.Flatten(), nn.Linear(80, 17), nn.Linear(17, 9), nn.ReLU(), nn.Linear(9, 10)),
        ),
        "three convolutions": nn.Sequential(
            nn.Conv2d(2, 6, 3, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 9, 3, padding=1), nn.ReLU(),
            nn.Conv2d(9, 3, 2), nn.Flatten(), nn.Linear(3 * 4 * 5, 10),
        ),
        "strides": nn.Sequential(
            nn.Conv2d(2, 5, 3, stride=(1, 2), padding=(0, 1)), nn.ReLU(), nn.Conv2d(5, 20, 2, stride=2), nn.Flatten(),
            nn.Linear(20 * 3 * 3, 10),
        ),
        "oblong kernels and windows": nn.Sequential(
            nn.Conv2d(2, 3, (1, 4), padding=(0, 2)), nn.MaxPool2d((3, 2)), nn.Conv2d(3, 17, (2, 1)), nn.ReLU(),
            nn.Flatten(), nn.Linear(17 * 2 * 6, 10),
        ),
        "one filter": nn.Sequential(nn.Conv2d(2, 1, 2), nn.ReLU(), nn.Conv2d(1, 1, 2), nn.Flatten(), nn.Linear(63, 10)),
        "more filters than a tile": nn.Sequential(
            nn.Conv2d(2, 70, 3), nn.ReLU(), nn.Conv2d(70, 33, 3), nn.Flatten(), nn.Linear(33 * 5 * 7, 10),
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", variants())
def test_fused_equals_eager_for_other_sequences_of_the_layers_it_knows(name: str) -> None:
    torch.manual_seed(0)
    module = variants()[name]
    job = some_job(module, (2, 9, 11))
    assert largest(FusedEngine(module).train(job) - EagerEngine(module).train(job)) < 1e-6
