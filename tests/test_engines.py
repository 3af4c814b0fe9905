import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polytempo.core.errors import UserError
from polytempo.core.orders import Objective, Work
from polytempo.core.streams import stream
from polytempo.core.vectors import Schema
from polytempo.learn.eager import EagerEngine
from polytempo.learn.engines import make_engine
from polytempo.learn.fused.engine import FusedEngine, why_unsupported
from polytempo.learn.models import Inputs, build_model
from polytempo.learn.task import Batches, Refresh, Task, make_batches

SAMPLES = 97
MODELS = {
    "mlp": ("mlp", (784,)),
    "har-mlp": ("har-mlp", (561,)),
    "cnn": ("cnn", (1, 28, 28)),
    "cnn of padded digits": ("cnn", (1, 8, 8)),
    "lenet": ("lenet", (3, 32, 32)),
    "lenet of odd images": ("lenet", (2, 13, 19)),
}


def weights_of(module: nn.Module) -> Tensor:
    return Schema.of(module).flatten(dict(module.named_parameters()) | dict(module.named_buffers()))


def some_task(module: nn.Module, shape: tuple[int, ...], steps: int = 5, classes: int = 10) -> Task:
    """Ten a batch of 97 samples: the last batch of an epoch is partial."""
    rng = stream(0, "engine test")
    x = torch.from_numpy(rng.standard_normal((SAMPLES, *shape), dtype=np.float32))
    y = torch.from_numpy(rng.integers(0, classes, SAMPLES))
    return Task(weights_of(module), x, y, make_batches(np.arange(SAMPLES), 10, steps, rng), Work(), lr=0.05)


def named_task(name: str, steps: int = 5) -> tuple[nn.Module, Task]:
    model, shape = MODELS[name]
    module = build_model(model, Inputs(shape, 10), seed=1)
    return module, some_task(module, shape, steps)


def near(task: Task, purpose: str, size: float = 0.01) -> Tensor:
    noise = stream(1, purpose).standard_normal(len(task.start), dtype=np.float32)
    return task.start + size * torch.from_numpy(noise)


def half(task: Task) -> Tensor:
    return torch.from_numpy(stream(1, "mask").random(len(task.start)) < 0.5)


def with_work(**changes: object) -> Callable[[Task], Task]:
    return lambda task: replace(task, work=replace(task.work, **changes))


def everything(task: Task) -> Task:
    work = replace(task.work, momentum=0.9, weight_decay=1e-3)
    objective = Objective(0.1, 0.2, 0.05, near(task, "anchor"))
    refreshes = (Refresh(2, near(task, "one")), Refresh(2, near(task, "two"), rebase=True))
    return replace(task, work=work, objective=objective, mask=half(task), refreshes=refreshes)


OPTIONS: dict[str, Callable[[Task], Task]] = {
    "plain": lambda task: task,
    "momentum": with_work(momentum=0.9),
    "weight decay": with_work(weight_decay=1e-2),
    "momentum and weight decay": with_work(momentum=0.9, weight_decay=1e-3),
    "adam": lambda task: replace(task, lr=1e-3, work=Work(optimizer="adam", weight_decay=1e-3)),
    "proximal": lambda task: replace(task, objective=Objective(proximal=0.5)),
    "cosine": lambda task: replace(task, objective=Objective(cosine=0.5, anchor=near(task, "anchor"))),
    "l2": lambda task: replace(task, objective=Objective(l2=0.1, anchor=near(task, "anchor"))),
    "mask": lambda task: replace(task, mask=half(task)),
    "refresh": lambda task: replace(
        task, refreshes=(Refresh(3, near(task, "one")), Refresh(5, near(task, "two"), True))
    ),
    "rebase": lambda task: replace(task, refreshes=(Refresh(3, near(task, "one"), rebase=True),)),
    "everything": everything,
}

engines = pytest.mark.parametrize("engine", [EagerEngine, FusedEngine])
SMALL = "cnn of padded digits"


def largest(difference: Tensor) -> float:
    return difference.abs().max().item()


def one_ulp_away(w: Tensor, purpose: str) -> Tensor:
    up = torch.from_numpy(stream(0, purpose).random(len(w)) < 0.5)
    return torch.where(up, torch.nextafter(w, torch.tensor(torch.inf)), torch.nextafter(w, torch.tensor(-torch.inf)))


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", MODELS)
def test_fused_equals_eager_after_five_steps(name: str, option: str) -> None:
    module, task = named_task(name)
    task = OPTIONS[option](task)
    assert largest(FusedEngine(module).train(task) - EagerEngine(module).train(task)) < 1e-5


@pytest.mark.parametrize("option", ["plain", "momentum", "adam", "everything"])
@pytest.mark.parametrize("name", MODELS)
def test_fused_is_no_further_from_eager_after_fifty_steps_than_eager_from_itself_one_ulp_away(name, option) -> None:
    module, task = named_task(name, steps=50)
    task = OPTIONS[option](task)
    eager = EagerEngine(module)
    result = eager.train(task)
    moved = [largest(eager.train(replace(task, start=one_ulp_away(task.start, f"ulp {i}"))) - result) for i in range(2)]
    diff = largest(FusedEngine(module).train(task) - result)
    print("RATIO", name, option, diff, moved)
    assert diff <= max(moved)
