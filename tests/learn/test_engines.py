"""What every engine promises, and which one is taken."""

import copy
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from polytempo.core.errors import UserError
from polytempo.core.orders import Objective, Work
from polytempo.learn.eager import EagerEngine
from polytempo.learn.engines import make_engine
from polytempo.learn.fused.engine import FusedEngine, why_unsupported
from polytempo.learn.job import Batches, Refresh, make_batches
from polytempo_client.streams import stream
from support.jobs import MODELS, OPTIONS, SMALL, half, largest, named_job, near, slope, with_batch_norm

engines = pytest.mark.parametrize("engine", [EagerEngine, FusedEngine])

# What every engine promises


@engines
@pytest.mark.parametrize("option", OPTIONS)
def test_the_same_job_gives_the_same_bits_whatever_other_threads_do(engine: type, option: str) -> None:
    module, job = named_job(SMALL)
    job = OPTIONS[option](job)
    other = replace(job, start=near(job, "other"), batches=make_batches(np.arange(40), 7, 5, stream(0, "other")))
    trainer = engine(module)
    alone = trainer.train(job)
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(trainer.train, [job, other, job, other, job, other]))
    assert all(torch.equal(result, alone) for result in together[::2])
    assert not torch.equal(together[1], alone)


@engines
@pytest.mark.parametrize("option", OPTIONS)
def test_a_job_is_only_read(engine: type, option: str) -> None:
    module, job = named_job(SMALL)
    job = OPTIONS[option](job)
    before = copy.deepcopy(job)
    result = engine(module).train(job)
    assert torch.equal(job.start, before.start)
    assert torch.equal(job.x, before.x)
    assert all(torch.equal(a.weights, b.weights) for a, b in zip(job.refreshes, before.refreshes, strict=True))
    assert result.data_ptr() != job.start.data_ptr()


@engines
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_coordinates_outside_the_mask_keep_their_start_value(engine: type, optimizer: str) -> None:
    module, job = named_job(SMALL)
    mask = half(job)
    work = Work(optimizer=optimizer, momentum=0.9, weight_decay=0.1)
    result = engine(module).train(replace(job, mask=mask, work=work, objective=Objective(proximal=0.1, cosine=0.1)))
    assert torch.equal(result[~mask], job.start[~mask])
    assert (result[mask] != job.start[mask]).float().mean() > 0.9


@engines
def test_a_refresh_before_the_first_step_is_another_start(engine: type) -> None:
    module, job = named_job(SMALL)
    fresh = near(job, "fresh")
    trainer = engine(module)
    refreshed = trainer.train(replace(job, refreshes=(Refresh(0, fresh),)))
    assert torch.equal(refreshed, trainer.train(replace(job, start=fresh)))


@engines
@pytest.mark.parametrize("rebase", [False, True])
def test_the_anchor_follows_a_refresh_unless_it_was_given(engine: type, rebase: bool) -> None:
    module, job = named_job(SMALL)
    fresh = near(job, "fresh", size=0.1)
    trainer = engine(module)
    for anchor in (None, near(job, "anchor", size=0.1)):
        regularised = replace(job, objective=Objective(proximal=2.0, cosine=2.0, l2=0.5, anchor=anchor))
        refreshed = trainer.train(replace(regularised, refreshes=(Refresh(0, fresh, rebase),)))
        assert largest(refreshed - trainer.train(replace(regularised, start=fresh))) < 1e-5


@engines
def test_a_refresh_after_the_last_step_is_the_result(engine: type) -> None:
    module, job = named_job(SMALL)
    fresh = near(job, "fresh")
    trainer = engine(module)
    assert torch.equal(trainer.train(replace(job, refreshes=(Refresh(5, fresh),))), fresh)
    progress = trainer.train(job) - job.start
    rebased = trainer.train(replace(job, refreshes=(Refresh(5, fresh, rebase=True),)))
    assert largest(rebased - (fresh + progress)) < 1e-6


@engines
def test_a_refresh_keeps_the_momentum(engine: type) -> None:
    module, job = named_job(SMALL)
    job = OPTIONS["momentum"](job)
    rows, offsets = job.batches.rows, job.batches.offsets
    last = replace(job, start=near(job, "fresh"), batches=Batches(rows[offsets[4] :], offsets[4:] - offsets[4]))
    trainer = engine(module)
    refreshed = trainer.train(replace(job, refreshes=(Refresh(4, last.start),)))
    assert largest(refreshed - trainer.train(last)) > 1e-3


@engines
def test_a_step_of_one_sample_and_a_step_of_all_may_follow_each_other(engine: type) -> None:
    module, job = named_job(SMALL)
    ragged = Batches(np.concatenate([[3], np.arange(97), [5, 6]]), np.array([0, 1, 98, 100]))
    step = engine(module).train
    by_hand = job.start
    for begin, end in ((0, 1), (1, 98), (98, 100)):
        one = Batches(ragged.rows[begin:end], np.array([0, end - begin]))
        by_hand = step(replace(job, start=by_hand, batches=one))
    assert torch.equal(step(replace(job, batches=ragged)), by_hand)


@engines
def test_no_steps_change_nothing(engine: type) -> None:
    module, job = named_job(SMALL)
    nothing = Batches(np.zeros(0, np.int64), np.zeros(1, np.int64))
    assert torch.equal(engine(module).train(replace(job, batches=nothing)), job.start)


@engines
def test_a_stronger_proximal_term_stays_nearer_to_the_start(engine: type) -> None:
    module, job = named_job(SMALL, steps=20)
    trainer = engine(module)
    ways = [trainer.train(replace(job, objective=Objective(proximal=p))) - job.start for p in (0.0, 1.0, 10.0)]
    assert ways[0].norm() > ways[1].norm() > ways[2].norm() > 0


@engines
@pytest.mark.parametrize("proximal", [0.0, 0.5])
def test_a_linear_term_is_added_to_every_gradient(engine: type, proximal: float) -> None:
    module, job = named_job(SMALL, steps=1)
    job = replace(job, objective=Objective(proximal, anchor=near(job, "anchor")))
    trainer = engine(module)
    tilted = trainer.train(replace(job, objective=replace(job.objective, linear=slope(job))))
    assert largest(tilted - (trainer.train(job) - job.lr * slope(job))) < 1e-6
    assert largest(tilted - trainer.train(job)) > 1e-4


# Which engine


@pytest.mark.parametrize("name", MODELS)
def test_auto_is_fused_where_that_is_possible(name: str) -> None:
    module, _ = named_job(name)
    assert isinstance(make_engine("auto", module), FusedEngine)
    assert isinstance(make_engine("auto", module, F.cross_entropy), FusedEngine)


def test_auto_is_eager_for_other_layers_and_other_losses() -> None:
    assert isinstance(make_engine("auto", with_batch_norm()), EagerEngine)
    assert isinstance(make_engine("auto", nn.Linear(3, 2), loss=F.multi_margin_loss), EagerEngine)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (with_batch_norm(), "BatchNorm2d"),
        (nn.Sequential(nn.Conv2d(1, 2, 3, dilation=2), nn.Flatten(), nn.Linear(8, 2)), "dilation 1"),
        (nn.Sequential(nn.Conv2d(1, 2, 3, padding="same"), nn.Flatten(), nn.Linear(8, 2)), "padding"),
        (nn.Sequential(nn.Conv2d(2, 2, 3, groups=2), nn.Flatten(), nn.Linear(8, 2)), "groups"),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(3, 2), nn.Flatten(), nn.Linear(8, 2)), "overlap"),
        (nn.Sequential(nn.Unflatten(1, (2, 8)), nn.Conv1d(2, 2, 3), nn.Flatten(), nn.Linear(8, 2)), "one channel"),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Linear(8, 2)), "Flatten"),
        (nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 2)), "bias"),
        (nn.Sequential(nn.Linear(4, 4), nn.ReLU()), "ReLU"),
        (nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 2)), "frozen"),
        (nn.Sequential(*[nn.Linear(4, 4)] * 2), "twice"),
    ],
)
def test_forcing_fused_on_a_model_it_does_not_know_is_an_error_with_the_reason(module: nn.Module, reason: str) -> None:
    assert why_unsupported(module) is not None
    with pytest.raises(UserError, match=reason):
        make_engine("fused", module)


def test_forcing_fused_with_a_loss_of_ones_own_is_an_error() -> None:
    with pytest.raises(UserError, match="cross-entropy"):
        make_engine("fused", nn.Linear(3, 2), loss=F.multi_margin_loss)


def test_an_unknown_engine_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match="'fused'"):
        make_engine("fussed", nn.Linear(3, 2))


def test_fused_refuses_what_does_not_fit_the_model() -> None:
    module, job = named_job(SMALL)
    with pytest.raises(UserError, match="label"):
        FusedEngine(module).train(replace(job, y=job.y + 1))
    with pytest.raises(UserError, match="weights"):
        FusedEngine(module).train(replace(job, mask=torch.ones(3, dtype=torch.bool)))
    with pytest.raises(UserError, match="samples"):
        FusedEngine(module).train(replace(job, x=job.x[:5], y=job.y[:5]))
    with pytest.raises(UserError, match="shape"):
        FusedEngine(module).train(replace(job, x=job.x[:, :, :7]))


def test_a_second_process_finds_the_compiled_code_on_disk() -> None:
    module, job = named_job(SMALL)
    FusedEngine(module).train(job)
    script = """
        import numpy as np, torch
        from torch import nn
        from polytempo.core.orders import Work
        from polytempo.learn.fused.engine import FusedEngine
        from polytempo.learn.fused.training import train
        from polytempo.learn.job import Batches, Job
        module = nn.Linear(3, 2)
        batches = Batches(np.arange(4), np.array([0, 4]))
        job = Job(torch.zeros(8), torch.ones(4, 3), torch.zeros(4, dtype=torch.int64), batches, Work(), 0.1)
        FusedEngine(module).train(job)
        print(sum(train.stats.cache_hits.values()), sum(train.stats.cache_misses.values()))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "0"]


@engines
def test_a_samples_outputs_depend_on_nothing_beside_it(engine: type) -> None:
    module, job = named_job(SMALL)
    outputs = engine(module).outputs
    rows = np.arange(97)
    together = outputs(job.start, job.x, rows)
    with ThreadPoolExecutor(4) as pool:
        alone = list(pool.map(lambda some: outputs(job.start, job.x, some), [rows] * 4))
    assert all(torch.equal(result, together) for result in alone)
    if engine is FusedEngine:
        pieces = [outputs(job.start, job.x, some) for some in np.array_split(rows[::-1].copy(), [1, 20, 83])]
        assert torch.equal(torch.cat(pieces).flip(0), together)
