"""EchoPFL with real clients: pull, push, branch and broadcast over a network."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from polytempo.core.orders import Send
from polytempo.learn.learner import Assignment
from polytempo.serve.client.join import Trained, carry_out, order_of
from polytempo.serve.client.own_data import make_join_settings, make_local
from polytempo_client.protocol.tasks import Membership
from support.echoing import BY_L1, fit
from support.joining import LINEAR, Gated, data
from support.serving import nudge, running, settled

GATED = {**LINEAR, "model": "support.joining:Gated"}
FIT = fit(0.5, 0.25, 0.75)
"""What an honest client answers."""


@pytest.mark.parametrize("refresh", ["continue", "rebase"])
def test_a_broadcast_reaches_a_client_in_the_middle_of_training_which_does_only_the_steps_left(
    tmp_path: Path, refresh: str
) -> None:
    given = {"model": GATED["model"], "data": GATED["data"], "init": None, "steps": 12, "batch_size": 4}
    with (
        running(
            tmp_path,
            "echopfl",
            parameters={**BY_L1, "first_clusters": 1, "broadcast": "always", "refresh": refresh},
            **given,
        ) as server,
        server.client(0) as trainer,
        server.client(1) as sender,
        ThreadPoolExecutor(1) as pool,
    ):
        for client, by in ((trainer, 0.1), (sender, 0.5)):
            task = client.task(30)
            client.push(task, nudge(task, by), samples=5, answers=FIT, ready=False, timeout=30)
        service, echo = server.host.service, server.host.service.strategy

        number, schema, seed = trainer.wait_for_welcome(30)
        local = make_local(make_join_settings(**GATED), data(), number, seed)
        order = order_of(trainer.task(30), number, schema)
        trained: list[Trained] = []
        Gated.close()
        pushed = pool.submit(trainer.run, lambda task: carry_out(task, local, trained.append), 1)
        assert Gated.reached.wait(60)

        task = sender.task(30)
        sender.push(task, nudge(task), samples=5, answers=FIT, ready=False, timeout=30)
        fresh, version = echo.model_for(0), echo.clusters.branches[0].version
        settled(trainer)  # what was sent before has arrived
        Gated.opened.set()
        pushed.result(60)

        assert version == order.version + 1
        rebase = refresh == "rebase"
        outcome, other = (
            local.learner.carry_out(
                Assignment(order, local.x, local.y, local.train, 12, 1, seed, ((1, Send(0, fresh, version, kept)),))
            ).update
            for kept in (rebase, not rebase)
        )
        assert torch.equal(echo.latest[0], outcome.weights)
        assert not torch.equal(outcome.weights, other.weights)
        assert [(done.version, done.steps) for done in trained] == [(version, 12)]
        assert (service.members[0].version, service.members[0].staleness) == (version, 0)
        assert echo.feedback[0] == outcome.answers["fit"]["feedback"]


def test_a_client_that_was_offered_several_models_is_left_alone_by_broadcasts(tmp_path: Path) -> None:
    """Which of them it trains is known only when it hands in."""
    parameters = {"assignment": "loss", "broadcast": "always"}
    with (
        running(tmp_path, "echopfl", parameters=parameters) as server,
        server.client(0) as chooser,
        server.client(1) as other,
    ):
        for client, by in ((chooser, 0.1), (other, 0.5)):
            task = client.task(30)
            client.push(task, nudge(task, by), samples=5, answers=FIT, ready=False, timeout=30)
        task, mixed = chooser.task(30), other.task(30)
        assert list(task.ordered.candidate_versions) == [1, 1]
        said = {"losses": [1.0, 0.5], **FIT}
        other.push(mixed, nudge(mixed), samples=5, chosen=1, answers=said, ready=False, timeout=30)
        settled(chooser)
        assert task.refreshes() == []
        chooser.push(task, nudge(task), samples=5, chosen=1, answers=said, ready=False, timeout=30)
        assert server.host.service.members[0].version == 1
        assert [chooser.branch(30), other.branch(30)] == [Membership(1, 2, 1), Membership(0, 2, 1)]


def test_pull_brings_the_model_of_the_branch_that_branch_names(tmp_path: Path) -> None:
    with (
        running(tmp_path, "echopfl", parameters={**BY_L1, "counts_as": 1e30}) as server,
        server.client(0) as a,
        server.client(1) as b,
    ):
        for client, by in ((a, 0.0), (b, 5.0)):
            task = client.task(30)
            client.push(task, nudge(task, by), samples=5, answers=FIT, ready=False, timeout=30)
        assert [a.branch(30), b.branch(30)] == [Membership(0, 1, 1), Membership(1, 1, 1)]
        task = a.task(30)
        a.push(task, nudge(task, 4.0), samples=5, answers=FIT, ready=False, timeout=30)  # nearer to b's
        assert a.branch(30) == b.branch(30) == Membership(1, 2, 2)
        for client in (a, b):
            model = client.pull(30)
            assert model.version == 2
            assert model.tensors["bias"].tolist() == [4.0, 4.0]
