"""A client with data of its own does what the server's strategy orders, as its simulated twin does."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from polytempo.core.errors import UserError
from polytempo.core.orders import Candidates, Objective, Orders, Report, Send, Train
from polytempo.learn.learner import Assignment
from polytempo.serve.client.join import Trained, carry_out, check_schema, join, order_of
from polytempo.serve.client.own_data import make_join_settings, make_local
from polytempo.sim.experiment import make_experiment
from polytempo.sim.run import run_experiment
from polytempo.strategies import Strategy
from polytempo_client.model.schema import Schema
from support.joining import LINEAR, Gated, data
from support.serving import Running


class Everything(Strategy):
    """Orders all that can be ordered."""

    use: str = "best"

    def order_for(self, client: int, now: float) -> Train:
        w = self.model.weights
        return self.train(
            client,
            self.model,
            objective=Objective(0.1, 0.2, 0.3, w + 1, w - 1),
            candidates=Candidates((w + 2, w + 3), (5, 6), self.use),  # type: ignore[arg-type]
            questions=("loss-statistics",),
            mask=torch.arange(len(w)) % 2 == 0,
            trainable=("0.weight",),
        )


class Asking(Strategy):
    """Asks what nobody knows."""

    def order_for(self, client: int, now: float) -> Train:
        return self.train(client, self.model, questions=("favourite-colour",))


class Interrupting(Strategy):
    """When client 1 pulls, client 0 is sent a model, and told to report if ``stop``."""

    stop: bool = False
    rebase: bool = False

    def pulled(self, client: int, now: float) -> Orders:
        if client == 1:
            yield Send(0, fresh(self.model.weights), 7, self.rebase)
            if self.stop:
                yield Report(0)

    def updated(self, update: Any, now: float) -> None:
        self.last = (update.version, update.steps, update.start, update.weights)


def fresh(w: Tensor) -> Tensor:
    return 0.9 * w + 0.01


def join_here(server: Running, client: int, updates: int = 1, **settings: Any) -> list[Trained]:
    """Join in this thread; what was trained."""
    trained: list[Trained] = []
    join(lambda: server.client(client), make_join_settings(**{**LINEAR, **settings}), updates, trained.append)
    return trained


# Orders


@pytest.mark.parametrize("use", ["best", "mixture"])
def test_an_order_arrives_as_the_strategy_gave_it(serve: Any, use: str) -> None:
    server = serve("test_join:Everything", parameters={"use": use}, momentum=0.5, weight_decay=0.1, lr="step:0.1:0.5:1")
    with server.client(1) as client:
        task = client.task()
        order, given = order_of(task, 1, client.schema), server.host.service.flights[1].order
    assert torch.equal(order.weights, given.weights)
    assert torch.equal(order.objective.anchor, given.objective.anchor)
    assert torch.equal(order.objective.linear, given.objective.linear)
    assert [(o.proximal, o.cosine, o.l2) for o in (order.objective, given.objective)] == 2 * [(0.1, 0.2, 0.3)]
    assert all(map(torch.equal, order.candidates.models, given.candidates.models))
    assert (order.candidates.versions, order.candidates.use) == ((5, 6), use)
    assert order.mask.dtype == torch.bool
    assert torch.equal(order.mask, given.mask)
    same = ("client", "version", "questions", "trainable")
    assert [getattr(order, name) for name in same] == [getattr(given, name) for name in same]
    assert order.work == replace(given.work, lr=0.1)


def test_an_order_without_extras_has_none(serve: Any) -> None:
    with serve("fedasync").client(0) as client:
        order = order_of(client.task(), 0, client.schema)
    assert (order.candidates, order.mask, order.objective) == (None, None, Objective())
    assert (order.questions, order.trainable) == ((), ())


@pytest.mark.parametrize("use", ["best", "mixture"])
def test_choice_and_answers_go_with_the_update_and_untrained_tensors_stay(serve: Any, use: str) -> None:
    server = serve("test_join:Everything", parameters={"use": use})
    with server.client(1) as client:
        task = client.task()
        local = make_local(make_join_settings(**LINEAR), data(), 1, client.seed)
        tensors, samples, more = carry_out(task, local)
        assert set(tensors) == {"0.weight"}
        client.push(task, tensors, samples=samples, **more)
    assert set(more["answers"]) == {"losses", "loss-statistics"} | ({"shares"} if use == "mixture" else set())
    assert more["chosen"] == (more["answers"]["losses"][1] < more["answers"]["losses"][0] if use == "best" else None)
    assert server.host.service.updates == 1


# The simulated twin


@pytest.mark.parametrize(
    ("strategy", "partition"),
    [("standalone", "dirichlet:0.5"), ("standalone", "labels:2"), ("standalone-again", "labels:2")],
)
def test_a_client_that_joins_ends_with_the_bits_of_its_simulated_twin(
    serve: Any, tmp_path: Path, strategy: str, partition: str
) -> None:
    common = {"data": LINEAR["data"], "model": LINEAR["model"], "engine": "eager", "clients": 4, "partition": partition}
    experiment = make_experiment(
        strategy=strategy, **common, updates=12, seed=3, batch_size=4, devices="homogeneous", lr="step:0.1:0.5:1"
    )
    run_experiment(experiment, tmp_path / "run")
    twins = [row for row in (tmp_path / "run/updates.jsonl").read_text().splitlines() if '"client": 2' in row]
    models = load_file(tmp_path / "run/models.safetensors")
    number = int(models["client_model"][2])

    server = serve(strategy, seed=3, lr="step:0.1:0.5:1")
    trained = join_here(server, 2, updates=len(twins), partition=partition, clients=4)
    assert len(trained) == len(twins) > 1
    served = server.host.service.schema.views(server.host.service.strategy.model_for(2))
    assert all(torch.equal(tensor, models[f"{number}.{name}"]) for name, tensor in served.items())


def test_without_a_partition_all_of_the_data_are_the_clients_own() -> None:
    local = make_local(make_join_settings(**LINEAR, test_share=0.25), data(), 7, 0)
    assert sorted([*local.train, *local.test]) == list(range(60))
    assert len(local.test) == 15


def test_the_servers_seed_decides_unless_another_is_given() -> None:
    settings = {**LINEAR, "partition": "iid", "clients": 3}
    by_server, by_client, other = (
        make_local(make_join_settings(**settings, seed=seed), data(), 1, server).train
        for seed, server in ((None, 5), (5, 0), (None, 0))
    )
    assert np.array_equal(by_server, by_client)
    assert not np.array_equal(by_server, other)


def test_progress_tells_how_the_model_does_on_the_clients_own_test_rows(serve: Any) -> None:
    trained = join_here(serve("fedavg", lr=0.2), 0, updates=4)
    assert [(t.version, t.steps) for t in trained] == [(0, 12), (1, 12), (2, 12), (3, 12)]
    assert trained[-1].loss < trained[0].loss
    assert 0 <= trained[0].accuracy <= trained[-1].accuracy <= 1


# In the middle of training


@pytest.mark.parametrize(("stop", "rebase"), [(False, False), (False, True), (True, False)])
def test_a_refresh_and_report_now_reach_a_client_in_the_middle_of_training(
    serve: Any, stop: bool, rebase: bool
) -> None:
    server = serve("test_join:Interrupting", parameters={"stop": stop, "rebase": rebase}, model="support.joining:Gated")
    settings = make_join_settings(**{**LINEAR, "model": "support.joining:Gated"})
    with server.client(0) as client, server.client(1) as other, ThreadPoolExecutor(1) as pool:
        number, schema, seed = client.wait_for_welcome(60)
        local = make_local(settings, data(), number, seed)
        Gated.close()
        order = order_of(client.task(), number, schema)
        pushed = pool.submit(client.run, lambda task: carry_out(task, local), 1)
        assert Gated.reached.wait(60)
        other.pull()
        client.pull()  # what was sent before this answer has arrived
        Gated.opened.set()
        pushed.result(60)
    version, steps, start, weights = server.host.service.strategy.last
    send = Send(0, fresh(order.weights), 7, rebase)
    told = Assignment(order, local.x, local.y, local.train, 1 if stop else 12, 0, seed, ((1, send),))
    assert (version, steps) == (7, told.steps)
    assert torch.equal(start, send.weights)
    assert torch.equal(weights, local.learner.carry_out(told).update.weights)


# What is wrong


def test_another_model_than_the_servers_is_named_with_the_first_difference(serve: Any) -> None:
    server = serve("fedasync")
    with pytest.raises(UserError, match=r"'1.weight' has shape \[100, 64\], the server's is missing"):
        join_here(server, 0, model="mlp", data="digits")
    assert not server.host.service.is_member(0)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (Schema(("w",), ((2,),), 2), r"tensor 'b' is missing, the server's has shape \[1\]"),
        (Schema(("w", "b", "c"), ((2,), (1,), (1,)), 4), r"tensor 'c' has shape \[1\], the server's is missing"),
        (Schema(("b", "w"), ((2,), (2,)), 4), r"tensor 'b' has shape \[2\], the server's has shape \[1\]"),
    ],
)
def test_every_difference_between_models_has_words(own: Schema, said: str) -> None:
    with pytest.raises(UserError, match=said):
        check_schema(own, Schema(("w", "b"), ((2,), (1,)), 3))


@pytest.mark.parametrize(
    ("own", "server", "said"),
    [
        ("a" * 64, "b" * 64, "fingerprint aaaaaaaaaaaa here, fingerprint bbbbbbbbbbbb there"),
        ("a" * 64, "", "none there"),
    ],
)
def test_other_frozen_parts_than_the_servers_are_refused(own: str, server: str, said: str) -> None:
    schema = Schema(("w",), ((2,),), 2)
    with pytest.raises(UserError, match=rf"frozen parts.*{said}.*same files or packages"):
        check_schema(replace(schema, frozen=own), replace(schema, frozen=server))


def test_the_order_of_tensors_does_not_matter() -> None:
    check_schema(Schema(("b", "w"), ((1,), (2,)), 2), Schema(("w", "b"), ((2,), (1,)), 3))


def test_a_question_that_the_client_does_not_know_is_an_error_that_names_it(serve: Any) -> None:
    with pytest.raises(UserError, match=r"favourite-colour.*does not know.*loss-statistics"):
        join_here(serve("test_join:Asking"), 0)


def test_a_client_whose_training_diverges_gives_up_and_says_what_to_do(serve: Any) -> None:
    server = serve("fedasync", lr=1e30)
    with pytest.raises(UserError, match=r"refuses.*distance from the start.*lower --lr"):
        join_here(server, 0)
    assert server.host.service.updates == 0
    assert not server.host.service.is_member(0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"clients": 3}, "clients belongs to partition"),
        ({"test_share": 1.0}, "test_share"),
        ({"engine": "quick"}, "Unknown engine 'quick'"),
        ({"color": "red"}, "color"),
    ],
)
def test_bad_settings_are_errors_in_plain_words(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        make_join_settings(**given)


def test_a_share_that_nobody_deals_to_this_client_is_an_error() -> None:
    with pytest.raises(UserError, match="needs the number of clients"):
        make_local(make_join_settings(**LINEAR, partition="iid"), data(), 0, 0)
    with pytest.raises(UserError, match="This is client 3, and the data are dealt to clients 0 to 2"):
        make_local(make_join_settings(**LINEAR, partition="iid", clients=3), data(), 3, 0)
