"""A training that hears of refreshes and of its end while it computes ends with the same bits as one that knew them."""

import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from polytempo.core.events import Update
from polytempo.core.orders import Objective, Send, Train, Work
from polytempo.learn.eager import EagerEngine
from polytempo.learn.flat import initial_vector
from polytempo.learn.fused import engine as fused
from polytempo.learn.job import Batches, Job, Refresh, make_batches
from polytempo.learn.learner import Assignment, Learner
from polytempo_client.streams import stream

STEPS, SAMPLES = 12, 23
MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 9), nn.ReLU(), nn.Linear(9, 4)),
    "cnn": lambda: nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, 4)
    ),
    "batch norm and dropout": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(36, 9), nn.BatchNorm1d(9), nn.Dropout(0.5), nn.Linear(9, 4)
    ),
}
WAYS = [("eager", name) for name in MODELS] + [("fused", "mlp"), ("fused", "cnn")]
OPTIONS: dict[str, Callable[[Job], Job]] = {
    "sgd": lambda job: job,
    "momentum": lambda job: replace(job, work=Work(momentum=0.9, weight_decay=1e-3)),
    "adam": lambda job: replace(job, work=Work(optimizer="adam"), lr=0.01),
    "proximal": lambda job: replace(job, objective=Objective(proximal=0.5)),
    "anchor": lambda job: replace(job, objective=Objective(0.5, 0.2, 0.1, near(job.start, "anchor"))),
    "linear": lambda job: replace(job, objective=Objective(linear=near(job.start, "linear") - job.start)),
    "mask": lambda job: replace(job, mask=torch.from_numpy(stream(0, "mask").random(len(job.start)) < 0.5)),
}
STOP = None

ways = pytest.mark.parametrize(("engine", "name"), WAYS)
options = pytest.mark.parametrize("option", OPTIONS)


@pytest.fixture(params=[0.0, float("inf")], ids=["segments of one step", "segments that grow"])
def segments(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast the machine is. The eager engine has no segments."""
    monkeypatch.setattr(fused, "LONGEST_SEGMENT", request.param)


def trainer_and_job(engine: str, name: str, option: str = "sgd") -> tuple[Any, Job]:
    torch.manual_seed(0)
    module = MODELS[name]()
    rng = stream(0, "listening test")
    x = torch.from_numpy(rng.standard_normal((SAMPLES, 1, 6, 6), dtype=np.float32))
    y = torch.from_numpy(rng.integers(0, 4, SAMPLES))
    batches = make_batches(np.arange(SAMPLES), 5, STEPS, rng)
    job = OPTIONS[option](Job(initial_vector(module), x, y, batches, Work(), lr=0.1))
    return (EagerEngine if engine == "eager" else fused.FusedEngine)(module), job


def near(w: Tensor, purpose: str) -> Tensor:
    return w + 0.05 * torch.from_numpy(stream(1, purpose).standard_normal(len(w), dtype=np.float32))


def cut(job: Job, steps: int) -> Job:
    rows, offsets = job.batches.rows, job.batches.offsets
    return replace(job, batches=Batches(rows[: offsets[steps]], offsets[: steps + 1]))


class Listener:
    """Tells each piece of news when it is first asked after so many steps, and remembers when that was."""

    def __init__(self, *news: tuple[int, Any]) -> None:
        self.news = list(news)
        self.asked: list[int] = []
        self.told: list[tuple[int, Any]] = []

    def __call__(self, done: int) -> list[Any] | None:
        self.asked.append(done)
        if not self.news or self.news[0][0] > done:
            return []
        _, thing = self.news.pop(0)
        self.told.append((done, thing))
        return None if thing is STOP else [thing]


# Engines


@options
@ways
@pytest.mark.usefixtures("segments")
def test_refreshes_that_arrive_give_the_bits_of_refreshes_that_were_known(engine: str, name: str, option: str) -> None:
    trainer, job = trainer_and_job(engine, name, option)
    fresh = [near(job.start, str(i)) for i in range(4)]
    news = ((0, fresh[0]), (3, fresh[1]), (3, fresh[2]), (7, fresh[3]))
    listener = Listener(*((k, Refresh(-1, w, rebase=i % 2 == 1)) for i, (k, w) in enumerate(news)))
    result = trainer.train(replace(job, listen=listener))
    assert [done for done, _ in listener.told] == [0, 3, 3, 7]
    known = tuple(replace(refresh, at_step=done) for done, refresh in listener.told)
    assert torch.equal(result, trainer.train(replace(job, refreshes=known)))
    assert not torch.equal(result, trainer.train(job))


@options
@ways
@pytest.mark.usefixtures("segments")
def test_listening_without_news_changes_no_bit(engine: str, name: str, option: str) -> None:
    trainer, job = trainer_and_job(engine, name, option)
    assert torch.equal(trainer.train(replace(job, listen=Listener())), trainer.train(job))


@options
@ways
@pytest.mark.usefixtures("segments")
def test_a_training_that_is_stopped_is_a_training_of_fewer_steps(engine: str, name: str, option: str) -> None:
    trainer, job = trainer_and_job(engine, name, option)
    listener = Listener((5, STOP))
    stopped = trainer.train(replace(job, listen=listener))
    [(done, _)] = listener.told
    assert 5 <= done < STEPS
    assert listener.asked[-1] == done
    assert torch.equal(stopped, trainer.train(cut(job, done)))


@ways
def test_a_stop_before_the_first_step_gives_back_the_start(engine: str, name: str) -> None:
    trainer, job = trainer_and_job(engine, name)
    assert torch.equal(trainer.train(replace(job, listen=Listener((0, STOP)))), job.start)


@ways
@pytest.mark.parametrize("rebase", [False, True])
@pytest.mark.usefixtures("segments")
def test_a_refresh_and_a_stop_may_come_before_the_same_step(engine: str, name: str, rebase: bool) -> None:
    trainer, job = trainer_and_job(engine, name, "mask")
    refresh = Refresh(3, near(job.start, "fresh"), rebase)
    listened = trainer.train(replace(job, listen=Listener((3, refresh), (3, STOP))))
    assert torch.equal(listened, trainer.train(replace(cut(job, 3), refreshes=(refresh,))))


def test_eager_listens_before_every_step_and_not_after_the_last() -> None:
    trainer, job = trainer_and_job("eager", "mlp")
    listener = Listener()
    trainer.train(replace(job, listen=listener))
    assert listener.asked == list(range(STEPS))


@pytest.mark.parametrize(
    ("longest", "asked"), [(0.0, list(range(STEPS))), (float("inf"), [0, 1, 3, 7])], ids=["slow", "fast"]
)
def test_fused_listens_between_segments_that_grow_while_they_are_short(
    longest: float, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "LONGEST_SEGMENT", longest)
    trainer, job = trainer_and_job("fused", "mlp")
    listener = Listener()
    trainer.train(replace(job, listen=listener))
    assert listener.asked == asked


def test_fused_segments_shrink_again_when_steps_become_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, job = trainer_and_job("fused", "mlp")
    monkeypatch.setattr(fused, "LONGEST_SEGMENT", float("inf"))
    asked = []

    def listen(done: int) -> list[Refresh]:
        asked.append(done)
        if done == 3:
            monkeypatch.setattr(fused, "LONGEST_SEGMENT", 0.0)
        return []

    trainer.train(replace(job, listen=listen))
    assert asked == [0, 1, 3, 7, 9, 10, 11]


@pytest.mark.parametrize("known", [0, 2])
def test_without_listening_a_whole_training_is_one_call_of_compiled_code(
    known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    compiled = fused.train
    monkeypatch.setattr(fused, "train", lambda *arguments: (calls.append(1), compiled(*arguments))[1])
    trainer, job = trainer_and_job("fused", "cnn")
    refreshes = tuple(Refresh(4 + i, near(job.start, str(i))) for i in range(known))
    trainer.train(replace(job, refreshes=refreshes))
    assert len(calls) == 1


def test_listening_compiles_nothing_anew() -> None:
    trainer, job = trainer_and_job("fused", "cnn", "adam")
    trainer.train(job)
    before = len(fused.train.signatures)
    trainer.train(replace(job, listen=Listener((0, Refresh(0, near(job.start, "fresh"))), (3, STOP))))
    assert len(fused.train.signatures) == before


@ways
def test_a_training_whose_listener_fails_leaves_no_trace_in_the_next(engine: str, name: str) -> None:
    trainer, job = trainer_and_job(engine, name, "momentum")
    alone = trainer.train(job)

    def listen(done: int) -> list[Refresh]:
        if done >= 3:
            raise ConnectionError
        return []

    with pytest.raises(ConnectionError):
        trainer.train(replace(job, listen=listen))
    assert torch.equal(trainer.train(job), alone)


def test_refreshes_are_either_known_or_listened_for() -> None:
    _, job = trainer_and_job("eager", "mlp")
    with pytest.raises(ValueError, match="not both"):
        replace(job, refreshes=(Refresh(0, job.start),), listen=Listener())


# The client's half


def learner_and_assignment(engine: str, name: str) -> tuple[Learner, Assignment]:
    torch.manual_seed(0)
    module = MODELS[name]()
    _, job = trainer_and_job(engine, name)
    order = Train(2, job.start, 5, Work(batch_size=5, momentum=0.9), Objective(proximal=0.1))
    return Learner(module, engine), Assignment(order, job.x, job.y, np.arange(SAMPLES), STEPS, count=1, seed=3)


def same(a: Update, b: Update) -> bool:
    numbers = (a.client, a.version, a.samples, a.steps) == (b.client, b.version, b.samples, b.steps)
    return numbers and torch.equal(a.weights, b.weights) and torch.equal(a.start, b.start)


@ways
@pytest.mark.usefixtures("segments")
def test_a_client_that_hears_of_models_hands_in_what_one_that_knew_them_does(engine: str, name: str) -> None:
    learner, assignment = learner_and_assignment(engine, name)
    start = assignment.order.weights
    one, two = Send(2, near(start, "one"), 7), Send(2, near(start, "two"), 9, rebase=True)
    listener = Listener((1, one), (7, two))
    listened = learner.carry_out(replace(assignment, listen=listener)).update
    assert same(listened, learner.carry_out(replace(assignment, sends=tuple(listener.told))).update)
    assert (listened.version, listened.steps) == (9, STEPS)
    assert torch.equal(listened.start, two.weights)


@ways
def test_a_client_that_is_told_to_report_hands_in_what_it_has_and_says_how_much_that_is(engine: str, name: str) -> None:
    learner, assignment = learner_and_assignment(engine, name)
    send = Send(2, near(assignment.order.weights, "one"), 7)
    for news in ([(3, STOP)], [(0, STOP)], [(1, send), (3, STOP)], [(3, send), (3, STOP)]):
        listener = Listener(*news)
        listened = learner.carry_out(replace(assignment, listen=listener)).update
        *sends, (done, _) = listener.told
        assert same(listened, learner.carry_out(replace(assignment, steps=done, sends=tuple(sends))).update)
        assert (listened.version, listened.steps) == (7 if sends else 5, done)


@ways
@pytest.mark.usefixtures("segments")
def test_orders_reach_a_training_in_another_thread(engine: str, name: str) -> None:
    learner, assignment = learner_and_assignment(engine, name)
    send = Send(2, near(assignment.order.weights, "one"), 7)
    questions: queue.SimpleQueue[int] = queue.SimpleQueue()
    orders: queue.SimpleQueue[list[Send] | None] = queue.SimpleQueue()

    def listen(done: int) -> list[Send] | None:
        questions.put(done)
        return orders.get(timeout=60)

    with ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(learner.carry_out, replace(assignment, listen=listen))
        for answer in ([], [send], [], None):
            orders.put(answer)
    *before, last = [questions.get() for _ in range(4)]
    assert before == [0, 1, 1]
    assert last > 1
    assert (outcome.result().update.version, outcome.result().update.steps) == (7, last)


def test_a_client_without_listening_reports_the_steps_it_was_given() -> None:
    learner, assignment = learner_and_assignment("eager", "mlp")
    assert learner.carry_out(assignment).update.steps == STEPS
