"""Jobs for engines: small models, samples that are noise, and every option that a job has."""

import copy
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polytempo.core.model.vectors import flatten, schema_of
from polytempo.core.orders import Objective, Work
from polytempo.learn.job import Job, Refresh, make_batches
from polytempo.learn.models import Inputs, build_model
from polytempo_client.streams import stream

SAMPLES = 97
MODELS = {
    "mlp": ("mlp", (784,)),
    "har-mlp": ("har-mlp", (561,)),
    "cnn": ("cnn", (1, 28, 28)),
    "cnn of padded digits": ("cnn", (1, 8, 8)),
    "lenet": ("lenet", (3, 32, 32)),
    "lenet of odd images": ("lenet", (2, 13, 19)),
    "cnn1d": ("cnn1d", (9, 50)),
    "cnn1d of one channel": ("cnn1d", (37,)),
    "textcnn": ("textcnn", (12,)),
}
VOCABULARY = 30


def weights_of(module: nn.Module) -> Tensor:
    return flatten(schema_of(module), dict(module.named_parameters()) | dict(module.named_buffers()))


def some_job(module: nn.Module, shape: tuple[int, ...], steps: int = 5, classes: int = 10, words: int = 0) -> Job:
    """Ten a batch of 97 samples, numbers or words: the last batch of an epoch is partial."""
    rng = stream(0, "engine test")
    numbers = rng.integers(0, words, (SAMPLES, *shape)) if words else rng.standard_normal((SAMPLES, *shape), np.float32)
    x = torch.from_numpy(numbers)
    y = torch.from_numpy(rng.integers(0, classes, SAMPLES))
    return Job(weights_of(module), x, y, make_batches(np.arange(SAMPLES), 10, steps, rng), Work(), lr=0.05)


def named_job(name: str, steps: int = 5) -> tuple[nn.Module, Job]:
    model, shape = MODELS[name]
    words = VOCABULARY if model == "textcnn" else 0
    module = build_model(model, Inputs(shape, 10, words or None), seed=1)
    return module, some_job(module, shape, steps, words=words)


def near(job: Job, purpose: str, size: float = 0.01) -> Tensor:
    noise = stream(1, purpose).standard_normal(len(job.start), dtype=np.float32)
    return job.start + size * torch.from_numpy(noise)


def half(job: Job) -> Tensor:
    return torch.from_numpy(stream(1, "mask").random(len(job.start)) < 0.5)


def slope(job: Job) -> Tensor:
    """A linear term about as large as a gradient."""
    return near(job, "linear") - job.start


def with_work(**changes: object) -> Callable[[Job], Job]:
    return lambda job: replace(job, work=replace(job.work, **changes))


def everything(job: Job) -> Job:
    work = replace(job.work, momentum=0.9, weight_decay=1e-3)
    objective = Objective(0.1, 0.2, 0.05, near(job, "anchor"), slope(job))
    refreshes = (Refresh(2, near(job, "one")), Refresh(2, near(job, "two"), rebase=True))
    return replace(job, work=work, objective=objective, mask=half(job), refreshes=refreshes)


OPTIONS: dict[str, Callable[[Job], Job]] = {
    "plain": lambda job: job,
    "momentum": with_work(momentum=0.9),
    "weight decay": with_work(weight_decay=1e-2),
    "momentum and weight decay": with_work(momentum=0.9, weight_decay=1e-3),
    "adam": lambda job: replace(job, lr=1e-3, work=Work(optimizer="adam", weight_decay=1e-3)),
    "proximal": lambda job: replace(job, objective=Objective(proximal=0.5)),
    "cosine": lambda job: replace(job, objective=Objective(cosine=0.5, anchor=near(job, "anchor"))),
    "l2": lambda job: replace(job, objective=Objective(l2=0.1, anchor=near(job, "anchor"))),
    "linear": lambda job: replace(job, objective=Objective(linear=slope(job))),
    "linear and momentum": lambda job: replace(
        job, work=Work(momentum=0.9, weight_decay=1e-3), objective=Objective(linear=slope(job))
    ),
    # so large that it cancels no gradient: adam would make a step of what rounding leaves
    "linear, adam and mask": lambda job: replace(
        job, lr=1e-3, work=Work(optimizer="adam"), objective=Objective(linear=slope(job).sign()), mask=half(job)
    ),
    "mask": lambda job: replace(job, mask=half(job)),
    "refresh": lambda job: replace(job, refreshes=(Refresh(3, near(job, "one")), Refresh(5, near(job, "two"), True))),
    "rebase": lambda job: replace(job, refreshes=(Refresh(3, near(job, "one"), rebase=True),)),
    "refreshed anchor": lambda job: replace(
        job, objective=Objective(0.5, 0.5, 0.1), refreshes=(Refresh(2, near(job, "one"), rebase=True),)
    ),
    "everything": everything,
}

SMALL = "cnn of padded digits"


def largest(difference: Tensor) -> float:
    return difference.abs().max().item()


def by_torch(module: nn.Module, job: Job, dtype: torch.dtype) -> Tensor:
    """The same training by torch.optim."""
    module = copy.deepcopy(module).to(dtype).train()
    work, offsets = job.work, job.batches.offsets
    settings = {"lr": job.lr, "weight_decay": work.weight_decay}
    optimizer = (
        torch.optim.Adam(module.parameters(), **settings)
        if work.optimizer == "adam"
        else torch.optim.SGD(module.parameters(), momentum=work.momentum, **settings)
    )
    for step in range(len(job.batches)):
        rows = job.batches.rows[offsets[step] : offsets[step + 1]]
        optimizer.zero_grad()
        F.cross_entropy(module(job.x[rows].to(dtype)), job.y[rows]).backward()
        optimizer.step()
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    return torch.cat([tensors[name].detach().reshape(-1) for name in schema_of(module).names])


def with_batch_norm() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(),
        nn.Linear(144, 8), nn.BatchNorm1d(8), nn.Linear(8, 10),
    )  # fmt: skip
