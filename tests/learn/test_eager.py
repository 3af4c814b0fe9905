"""The eager engine against torch.optim."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from polytempo.core.errors import UserError
from polytempo.core.model.vectors import schema_of
from polytempo.core.orders import Objective, Work
from polytempo.learn.dropout import seeded_dropout
from polytempo.learn.eager import EagerEngine
from polytempo.learn.job import Batches
from support.jobs import OPTIONS, by_torch, largest, some_job, with_batch_norm


def test_a_linear_term_leaves_batch_norms_statistics_alone() -> None:
    module = with_batch_norm()
    job = some_job(module, (1, 8, 8), steps=1)
    tilted = EagerEngine(module).train(replace(job, objective=Objective(linear=torch.ones_like(job.start))))
    moved = tilted - EagerEngine(module).train(job)
    count = schema_of(module).parameter_count
    assert torch.equal(moved[count:], torch.zeros_like(moved[count:]))
    assert largest(moved[:count] + job.lr) < 1e-6


@pytest.mark.parametrize("option", ["plain", "momentum", "weight decay", "momentum and weight decay", "adam"])
def test_eager_equals_torch_optim_buffers_included(option: str) -> None:
    module = with_batch_norm()
    job = OPTIONS[option](some_job(module, (1, 8, 8), steps=12))
    assert largest(EagerEngine(module).train(job) - by_torch(module, job, torch.float32)) < 2e-6


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_eager_trains_what_asks_for_a_gradient_alone_as_torch_optim_does(optimizer: str) -> None:
    module = with_batch_norm()
    module[4].requires_grad_(False)
    job = some_job(module, (1, 8, 8))
    job = replace(job, lr=0.01, work=Work(optimizer=optimizer, momentum=0.9, weight_decay=0.1))
    assert largest(EagerEngine(module).train(job) - by_torch(module, job, torch.float32)) < 2e-6


def test_a_batch_of_one_sample_before_batch_norm_is_an_error_that_says_what_to_do() -> None:
    module = with_batch_norm()
    job = some_job(module, (1, 8, 8))
    with pytest.raises(UserError, match="--batch-size"):
        EagerEngine(module).train(replace(job, batches=Batches(np.arange(11), np.array([0, 10, 11]))))


def test_eager_keeps_the_statistics_of_a_frozen_layer() -> None:
    module = with_batch_norm()
    job = some_job(module, (1, 8, 8))
    schema = schema_of(module)
    result = EagerEngine(module).train(replace(job, mask=torch.from_numpy(schema.layers(["4", "5", "6"]))))
    for name, span in schema.spans.items():
        assert torch.equal(result[span], job.start[span]) == name.startswith(("0", "1"))


def test_eager_dropout_depends_on_the_seed_alone() -> None:
    module = nn.Sequential(nn.Linear(20, 30), nn.Dropout(0.5), nn.Linear(30, 10))
    job = some_job(module, (20,))
    trainer = EagerEngine(module)
    first = trainer.train(job)
    torch.manual_seed(5)
    assert torch.equal(trainer.train(job), first)
    assert not torch.equal(trainer.train(replace(job, seed=1)), first)


def test_eager_dropout_in_two_places_is_replaced_in_both() -> None:
    dropout = nn.Dropout(0.5)
    module, replaced = seeded_dropout(nn.Sequential(nn.Linear(4, 4), dropout, nn.Linear(4, 4), dropout))
    assert len(replaced) == 2
    assert not any(isinstance(part, nn.Dropout) for part in module)


def test_eager_leaves_frozen_batch_norm_and_dropout_in_eval_mode() -> None:
    module = nn.Sequential(nn.Linear(20, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)).requires_grad_(False)
    module[1].running_mean += 1
    head = nn.Linear(6, 10)
    job = some_job(nn.Sequential(module, head), (20,))
    by_hand = EagerEngine(head).train(replace(job, x=module.eval()(job.x)))
    assert torch.equal(EagerEngine(nn.Sequential(module.train(), head)).train(job), by_hand)
    assert module[1].running_mean.eq(1).all()
