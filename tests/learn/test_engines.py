import copy
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
from polytempo.core.vectors import flatten, schema_of
from polytempo.learn.dropout import seeded_dropout
from polytempo.learn.eager import EagerEngine
from polytempo.learn.engines import make_engine
from polytempo.learn.fused.engine import FusedEngine, why_unsupported
from polytempo.learn.job import Batches, Job, Refresh, make_batches
from polytempo.learn.models import Inputs, build_model

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
    return flatten(schema_of(module), dict(module.named_parameters()) | dict(module.named_buffers()))


def some_job(module: nn.Module, shape: tuple[int, ...], steps: int = 5, classes: int = 10) -> Job:
    """Ten a batch of 97 samples: the last batch of an epoch is partial."""
    rng = stream(0, "engine test")
    x = torch.from_numpy(rng.standard_normal((SAMPLES, *shape), dtype=np.float32))
    y = torch.from_numpy(rng.integers(0, classes, SAMPLES))
    return Job(weights_of(module), x, y, make_batches(np.arange(SAMPLES), 10, steps, rng), Work(), lr=0.05)


def named_job(name: str, steps: int = 5) -> tuple[nn.Module, Job]:
    model, shape = MODELS[name]
    module = build_model(model, Inputs(shape, 10), seed=1)
    return module, some_job(module, shape, steps)


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

engines = pytest.mark.parametrize("engine", [EagerEngine, FusedEngine])
SMALL = "cnn of padded digits"


def largest(difference: Tensor) -> float:
    return difference.abs().max().item()


def one_ulp_away(w: Tensor, purpose: str) -> Tensor:
    up = torch.from_numpy(stream(0, purpose).random(len(w)) < 0.5)
    return torch.where(up, torch.nextafter(w, torch.tensor(torch.inf)), torch.nextafter(w, torch.tensor(-torch.inf)))


def own_drift(engine: EagerEngine, job: Job, tries: int = 6) -> float:
    """How far the result moves when the start weights change by one unit in the last place."""
    result = engine.train(job)
    starts = [one_ulp_away(job.start, f"ulp {i}") for i in range(tries)]
    return max(largest(engine.train(replace(job, start=start)) - result) for start in starts)


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


# Fused against eager


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", MODELS)
def test_fused_equals_eager_after_five_steps(name: str, option: str) -> None:
    module, job = named_job(name)
    job = OPTIONS[option](job)
    eager = EagerEngine(module)
    allowed = 1e-5
    if option == "adam":
        # it divides a gradient by its own size: where one cancels to almost 0, its rounding error is a step's length
        allowed = max(allowed, 2 * own_drift(eager, job, tries=2))
    assert largest(FusedEngine(module).train(job) - eager.train(job)) <= allowed


@pytest.mark.parametrize("name", MODELS)
def test_fused_is_no_further_from_eager_after_fifty_steps_than_eager_from_itself_one_ulp_away(name: str) -> None:
    module, job = named_job(name, steps=50)
    eager = EagerEngine(module)
    assert largest(FusedEngine(module).train(job) - eager.train(job)) <= own_drift(eager, job)


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
    }  # fmt: skip


@pytest.mark.parametrize("name", variants())
def test_fused_equals_eager_for_other_sequences_of_the_layers_it_knows(name: str) -> None:
    torch.manual_seed(0)
    module = variants()[name]
    job = some_job(module, (2, 9, 11))
    assert largest(FusedEngine(module).train(job) - EagerEngine(module).train(job)) < 1e-6


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


def test_a_linear_term_leaves_batch_norms_statistics_alone() -> None:
    module = with_batch_norm()
    job = some_job(module, (1, 8, 8), steps=1)
    tilted = EagerEngine(module).train(replace(job, objective=Objective(linear=torch.ones_like(job.start))))
    moved = tilted - EagerEngine(module).train(job)
    count = schema_of(module).parameter_count
    assert torch.equal(moved[count:], torch.zeros_like(moved[count:]))
    assert largest(moved[:count] + job.lr) < 1e-6


# Eager against torch.optim


def with_batch_norm() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(),
        nn.Linear(144, 8), nn.BatchNorm1d(8), nn.Linear(8, 10),
    )  # fmt: skip


@pytest.mark.parametrize("option", ["plain", "momentum", "weight decay", "momentum and weight decay", "adam"])
def test_eager_equals_torch_optim_buffers_included(option: str) -> None:
    module = with_batch_norm()
    job = OPTIONS[option](some_job(module, (1, 8, 8), steps=12))
    assert largest(EagerEngine(module).train(job) - by_torch(module, job, torch.float32)) < 2e-6


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_eager_leaves_parameters_without_gradient_alone_as_torch_optim_does(optimizer: str) -> None:
    module = with_batch_norm()
    module[4].requires_grad_(False)
    job = some_job(module, (1, 8, 8))
    job = replace(job, lr=0.01, work=Work(optimizer=optimizer, momentum=0.9, weight_decay=0.1))
    assert largest(EagerEngine(module).train(job) - by_torch(module, job, torch.float32)) < 2e-6
    pulled = EagerEngine(module).train(replace(job, objective=Objective(1.0, 1.0, 1.0, near(job, "anchor"))))
    frozen = torch.from_numpy(schema_of(module).layers(["4"]))
    assert torch.equal(pulled[frozen], job.start[frozen])


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
        (nn.Sequential(nn.Conv2d(1, 2, 3, stride=2), nn.Flatten(), nn.Linear(8, 2)), "stride 1"),
        (nn.Sequential(nn.Conv2d(2, 2, 3, groups=2), nn.Flatten(), nn.Linear(8, 2)), "groups"),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(3), nn.Flatten(), nn.Linear(8, 2)), "MaxPool2d"),
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
