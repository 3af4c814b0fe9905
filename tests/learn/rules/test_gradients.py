"""What rules get from engines: gradients, and an optimiser that takes the engines' steps."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from polytempo.core.model.vectors import tensor_of
from polytempo.core.orders import Work
from polytempo.learn.job import Job
from polytempo.learn.rules.gradients import Gradients, Optimiser
from polytempo_client.streams import stream
from support.softmax import DATA, RATE, ROWS, SIZE, gradient, make_learner, some_vector

ENGINES = ["eager", "fused"]
SGD = Work(batch_size=3, lr=RATE)


def job_of(engine: str, work: Work, steps: int = 5) -> tuple[Job, Gradients]:
    learner = make_learner(engine)
    batches = learner.batches(ROWS, work, steps, stream(0, "batches"))
    start = tensor_of(some_vector(1))
    job = Job(start, torch.from_numpy(DATA.x), torch.from_numpy(DATA.y), batches, work, RATE)
    return job, Gradients(learner.engine, job, SIZE)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_gradient_is_that_of_the_loss_on_the_steps_batch(engine: str) -> None:
    job, gradients = job_of(engine, SGD)
    for step in range(len(job.batches)):
        expected = gradient(some_vector(2), job.batches.only(step).rows)
        assert np.allclose(gradients.at(some_vector(2), step).gradient, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "work",
    [SGD, replace(SGD, momentum=0.9), replace(SGD, weight_decay=0.1), replace(SGD, optimizer="adam")],
    ids=["sgd", "momentum", "decay", "adam"],
)
def test_the_optimiser_takes_the_steps_of_an_engine(work: Work, engine: str) -> None:
    job, gradients = job_of(engine, work)
    optimiser, weights = Optimiser(work, job.lr), job.start.numpy()
    for step in range(len(job.batches)):
        weights = optimiser.step(weights, gradients.at(weights, step))
    expected = make_learner(engine).engine.train(job).numpy()
    assert np.abs(weights - expected).max() < 1e-5


def test_first_batches_and_only_one_are_parts_of_the_same_steps() -> None:
    job, _ = job_of("eager", SGD)
    first = job.batches.first(2)
    assert len(first) == 2
    assert np.array_equal(first.rows, np.concatenate([job.batches.only(0).rows, job.batches.only(1).rows]))
