from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from polytempo.core.orders import Objective, Send, Train, Work
from polytempo.learn.flat import initial_vector
from polytempo.learn.learner import Assignment, Learner
from polytempo.learn.rules.fedrep import head_steps
from polytempo.testing import tiny_dataset
from polytempo.testing.building import two_layers
from polytempo_client.personal.told import Personal

DATA = tiny_dataset()
X, Y = torch.from_numpy(DATA.x), torch.from_numpy(DATA.y)
ROWS, BODY = np.arange(12), 25
FIRST = initial_vector(two_layers())
FEDREP = Personal("fedrep", {"head_share": 0.6})
WORK = Work(steps=5, epochs=None, batch_size=4, lr=0.5, momentum=0.5)


def own_of(engine: str = "eager", personal: Personal | None = FEDREP, work: Work = WORK, **more: Any) -> Tensor:
    """The model that comes of one task of 5 steps; its head is private."""
    learner = Learner(two_layers(), engine).with_private(["head"], FIRST)
    objective = more.pop("objective", Objective())
    order = Train(0, FIRST[:BODY], 0, work, objective, personal=personal)
    steps = work.steps_for(len(ROWS))
    return learner.carry_out(Assignment(order, X, Y, ROWS, steps, 0, 0, **more)).own


@pytest.mark.parametrize(("steps", "expected"), [(0, 0), (1, 0), (2, 1), (3, 2), (15, 10), (100, 67)])
def test_the_head_gets_its_share_and_each_part_a_step(steps: int, expected: int) -> None:
    assert head_steps(2 / 3, steps) == expected
    assert head_steps(0.01, steps) == min(1, max(steps - 1, 0))
    assert head_steps(0.99, steps) <= max(steps - 1, 0)


@pytest.mark.parametrize("engine", ["eager", "fused"])
def test_the_head_is_trained_first_and_the_body_afterwards(engine: str) -> None:
    told: list[int] = []

    def listen(done: int, stop: int) -> list[Send] | None:
        told.append(done)
        return None if done == stop else []

    after_head = own_of(engine, listen=lambda done: listen(done, 3))
    assert torch.equal(after_head[:BODY], FIRST[:BODY])
    assert not torch.equal(after_head[BODY:], FIRST[BODY:])
    earlier = own_of(engine, listen=lambda done: listen(done, 1))
    assert torch.equal(earlier[:BODY], FIRST[:BODY])
    assert not torch.equal(earlier[BODY:], after_head[BODY:])
    whole = own_of(engine)
    assert torch.equal(whole[BODY:], after_head[BODY:])
    assert not torch.equal(whole[:BODY], after_head[:BODY])
    told.clear()
    assert torch.equal(own_of(engine, listen=lambda done: listen(done, 99)), whole)
    assert set(told) == {0, *told} <= set(range(5)), "steps are counted through"


@pytest.mark.parametrize("at", [1, 3, 4])
def test_a_refresh_changes_the_body_alone_in_either_part(at: int) -> None:
    fresh = torch.linspace(-1, 1, BODY)
    work = Work(steps=5, epochs=None, batch_size=12, lr=0.5)
    messages = {at: [Send(0, fresh, 1)]}
    listened = own_of(work=work, listen=lambda done: messages.pop(done, []))
    assert torch.equal(listened, own_of(work=work, sends=((at, Send(0, fresh, 1)),)))
    assert not torch.equal(listened, own_of(work=work))


def test_an_objective_without_an_anchor_is_about_the_model_that_was_served() -> None:
    near = own_of(objective=Objective(proximal=1.5))
    named = own_of(objective=Objective(proximal=1.5, anchor=FIRST[:BODY]))
    assert torch.equal(near, named)
