"""The eager engine on a device of torch. The device "meta" stands for one that this machine lacks: tensors move there,
but nothing is computed."""

import numpy as np
import pytest
import torch
from torch import nn

from polytempo.core.errors import UserError
from polytempo.learn.accelerator import KEPT, Resident, accelerator, placed, placed_job
from polytempo.learn.eager import EagerEngine
from polytempo.learn.engines import make_engine
from support.jobs import OPTIONS, SMALL, named_job

ELSEWHERE = torch.device("meta")


def test_the_cpu_is_a_device_like_others() -> None:
    module, job = named_job(SMALL)
    by_name = make_engine("eager", module, device="cpu")
    assert torch.equal(by_name.train(job), EagerEngine(module).train(job))
    assert torch.equal(by_name.outputs(job.start, job.x), EagerEngine(module).outputs(job.start, job.x, np.arange(97)))


def test_data_are_moved_to_a_device_once() -> None:
    keep, data = Resident(ELSEWHERE), torch.ones(3)
    assert keep(data) is keep(data)
    assert keep(data).device == ELSEWHERE
    others = [torch.ones(3) for _ in range(KEPT)]
    first = keep(data)
    for other in others:
        keep(other)
    assert keep(data) is not first


def test_data_that_lie_on_the_device_are_not_copied() -> None:
    data = torch.ones(3)
    assert Resident(torch.device("cpu"))(data) is data


def test_a_module_is_copied_only_to_another_device() -> None:
    module = nn.Linear(3, 2).requires_grad_(False)
    assert placed(module, torch.device("cpu")) is module
    assert {parameter.device for parameter in placed(module, ELSEWHERE).parameters()} == {ELSEWHERE}
    assert module.weight.device.type == "cpu"


def test_all_vectors_of_a_job_move() -> None:
    _, job = named_job(SMALL)
    moved = placed_job(OPTIONS["everything"](job), ELSEWHERE)
    vectors = (moved.start, moved.mask, moved.objective.anchor, moved.objective.linear)
    assert {vector.device for vector in vectors if vector is not None} == {ELSEWHERE}


def test_a_device_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="no cuda device"):
        accelerator("cuda")
    with pytest.raises(UserError, match="Did you mean 'cuda'"):
        accelerator("cudda")


def test_the_fused_engine_computes_on_the_cpu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(UserError, match="CPU only"):
        make_engine("fused", nn.Linear(3, 2), device="cuda")
