"""Whole methods against second formulations of them, in plain numpy and from the papers alone (``reference/``)."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import nn

from contract.reference import casa, echopfl, fedac, fedasync, ifca, pace, port, private_layers
from polytempo.core.events import Update
from polytempo.core.model.vectors import flatten, schema_of
from polytempo.core.orders import Work
from polytempo.learn.questions import Asked, questions
from polytempo.learn.scoring import Scorer
from polytempo.sim.records.evaluation import Stop
from polytempo.sim.simulator import Simulator
from polytempo.strategies import make_strategy
from polytempo.strategies.methods.casa import Casa
from polytempo.strategies.methods.echopfl import EchoPFL
from polytempo.strategies.methods.fedac import FedAC
from polytempo.strategies.methods.ifca import IFCA
from polytempo.strategies.methods.pace import Pace
from polytempo.strategies.methods.port import Port
from polytempo.strategies.parts.echo import Echo
from polytempo.strategies.parts.echo_predictor import Predictor, pretrained
from polytempo.strategies.parts.refinement import merged
from polytempo.testing import begun, simulator
from support.feeding import feed, initial

START = initial().astype(np.float64)
seeds = pytest.mark.parametrize("seed", range(4))


@pytest.mark.parametrize("engine", ["eager", "fused"])
@pytest.mark.parametrize("method", ["fedper", "fedrep", "lg-fedavg"])
def test_rounds_with_private_layers_are_those_of_their_papers(method: str, engine: str) -> None:
    clients, rounds, steps, rate = 5, 6, 4, 0.5
    work = Work(steps=steps, epochs=None, batch_size=1000, lr=rate)
    parameters = {"head_share": 0.75} if method == "fedrep" else {}
    stop, strategy = Stop(updates=clients * rounds), make_strategy(method, parameters)
    sim = simulator(strategy, clients, "slow:0.5x3", stop, work, partition="dirichlet:0.5", engine=engine)
    first = [array.astype(np.float64) for array in sim.learner.layers.model.views(first_of(sim).numpy()).values()]
    rows = [sim.federation.client(client).train for client in range(clients)]
    data = [(sim.federation.dataset.x[mine].astype(np.float64), sim.federation.dataset.y[mine]) for mine in rows]
    assert len({len(mine) for mine in rows}) > 1, "means are weighted"
    sim.run()
    body, head = private_layers.Layer(*first[:2]), private_layers.Layer(*first[2:])
    shared, private = private_layers.run(method, body, head, data, rounds, steps, 3, rate)
    for client in range(clients):
        layers = (private[client], shared) if method == "lg-fedavg" else (shared, private[client])
        expected = np.concatenate([array.ravel() for layer in layers for array in layer])
        found = sim.personal.whole(client, strategy.model_for(client)).numpy()
        np.testing.assert_allclose(found, expected, atol=1e-5)
        np.testing.assert_allclose(sim.evaluator._model_for(client).numpy(), found, atol=0)


def first_of(sim: Simulator) -> torch.Tensor:
    """The whole model that every client begins with."""
    return sim.personal.whole(0, sim.strategy.model_for(0))


@seeds
def test_rounds_of_ifca_are_those_of_its_paper(seed: int) -> None:
    clients, classes, rounds, steps, rate = 6, 3, 4, 3, 0.5
    strategy = IFCA(k=3)
    work = Work(steps=steps, epochs=None, batch_size=1000, lr=rate)
    stop = Stop(updates=clients * rounds)
    sim = simulator(strategy, clients, "slow:0.5x3", stop, work, partition="dirichlet:0.3")
    for number, branch in strategy.clusters.branches.items():  # far apart, so that clients choose unlike ones
        rng = np.random.default_rng((seed, number))
        branch.replace(torch.from_numpy(rng.normal(scale=2, size=len(branch.weights))).float())
    first = [branch.weights.double().numpy() for branch in strategy.clusters.branches.values()]
    rows = [sim.federation.client(client).train for client in range(clients)]
    data = [(sim.federation.dataset.x[mine], sim.federation.dataset.y[mine]) for mine in rows]
    sim.run()
    expected, chosen = ifca.run(first, data, classes, rounds, steps, rate)
    for branch, model in zip(strategy.clusters.branches.values(), expected, strict=True):
        np.testing.assert_allclose(branch.weights, model, atol=1e-4)
    assert [strategy.cluster_of(client) for client in range(clients)] == chosen
    assert len(set(chosen)) > 1


@seeds
@pytest.mark.parametrize(
    ("given", "s"),
    [
        ("constant", fedasync.constant),
        ("polynomial:0.7", fedasync.polynomial(0.7)),
        ("hinge:3:1", fedasync.hinge(3, 1)),
    ],
)
def test_the_server_of_fedasync_is_that_of_its_paper(seed: int, given: str, s: Any) -> None:
    strategy = make_strategy("fedasync", {"mixing": 0.4, "staleness": given})
    server = fedasync.Server(START, 0.4, s)
    for _ in feed(strategy, server, seed):
        np.testing.assert_allclose(strategy.model_for(0), server.models[-1], atol=1e-4)


@seeds
@pytest.mark.parametrize("form", ["paper", "plato"])
def test_port_steps_as_its_paper_says_and_as_its_authors_code_does(seed: int, form: Any) -> None:
    strategy = Port(preset=form, min_updates=3, freshness=0.5, agreement=2.0, staleness_bound=4)
    server = port.Server(START, 3, 0.5, 2.0, 4, form)
    for _ in feed(strategy, server, seed, updates=90):
        np.testing.assert_allclose(strategy.model_for(0), server.model, atol=1e-4)
    assert server.round == 31


@seeds
def test_fedac_weighs_steps_and_corrects_as_its_paper_says(seed: int) -> None:
    strategy = FedAC(buffer_size=4, beta1=0.6, beta2=0.8, server_lr=0.3)
    server = fedac.Server(START, 6, 4, 0.6, 0.8, 0.3, Work().lr)  # type: ignore[arg-type]
    for training in feed(strategy, server, seed):
        np.testing.assert_allclose(strategy.model_for(0), server.model, atol=1e-3)
        for client, order in training.items():
            assert order.objective.linear is not None
            np.testing.assert_allclose(order.objective.linear, server.sent_out[client][1], rtol=1e-3, atol=0.05)


@seeds
@pytest.mark.parametrize(("gamma", "a"), [(1.5, 1.5), (0.3, 0.0)])
def test_pace_with_unequal_samples_knows_p_as_it_is_at_each_arrival(seed: int, gamma: float, a: float) -> None:
    strategy = Pace(gamma=gamma, staleness=f"polynomial:{a}", budget=0)  # type: ignore[arg-type]
    server = pace.Server(START, 6, gamma, a)
    for _ in feed(strategy, server, seed):
        served = torch.stack([strategy.model_for(client) for client in range(6)])
        np.testing.assert_allclose(served, server.phi, atol=1e-4)
        for client, row in server.rows.items():
            np.testing.assert_allclose(strategy.collaboration()[client], row, atol=1e-4)


@seeds
@pytest.mark.parametrize(("clients", "kappa", "budget"), [(6, 0.001, 100), (6, 0.5, 100), (12, 0.001, 20)])
def test_casa_decays_compares_and_buffers_as_its_paper_says(seed: int, clients: int, kappa: float, budget: int) -> None:
    strategy = Casa(preset="paper", kappa=kappa, budget=budget, alpha0=1.5)
    server = casa.Server(START, clients, 1.5, kappa, budget)
    for _ in feed(strategy, server, seed, clients, lean=3.0):  # so much alike that nothing splits
        np.testing.assert_allclose(strategy.model_for(0), server.models[-1], atol=1e-3)
        for (i, j), cosine in server.similarity.items():
            assert strategy.similarity()[i, j] == pytest.approx(cosine, abs=1e-4)
        assert np.count_nonzero(~np.isnan(strategy.similarity())) == len(server.similarity)
        for owner in range(clients):
            buffered = [(sender, vector) for o, sender, vector in server.buffers if o == owner]
            assert [one.client for one in strategy.buffers.of(owner)] == [sender for sender, _ in buffered]
            for one, (_, vector) in zip(strategy.buffers.of(owner), buffered, strict=True):
                np.testing.assert_allclose(one.vector, vector, atol=1e-5)
    assert not strategy.splits()


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(2, 4))
def test_the_feedback_of_echopfl_is_equation_3(seed: int, rows: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    module = nn.Sequential(nn.Linear(2, classes))
    matrix, bias = rng.normal(size=(classes, 2)), rng.normal(size=classes)
    weights = flatten(
        schema_of(module), {"0.weight": torch.tensor(matrix).float(), "0.bias": torch.tensor(bias).float()}
    )
    x, y = rng.normal(size=(rows, 2)).astype(np.float32), rng.integers(0, classes, rows)
    asked = Asked(Scorer(module), torch.from_numpy(x), torch.from_numpy(y), np.arange(rows), weights, weights)
    answer = questions["fit-of-all"](asked)
    assert answer["feedback"] == pytest.approx(echopfl.feedback(x @ matrix.T + bias, y), rel=1e-3, abs=1e-6)


@seeds
@pytest.mark.parametrize(
    ("by", "counts_as", "given"),
    [("l1", 1.0, {"preset": "paper"}), ("l1", 6.0, {"assignment": "l1"}), ("kl", 6.0, {})],
    ids=["paper", "l1", "kl"],
)
def test_echopfl_assigns_clients_and_mixes_their_models_as_its_paper_says(
    by: str, counts_as: float, given: dict[str, Any], seed: int
) -> None:
    rng, clients = np.random.default_rng(seed), 7
    server = echopfl.Clusters(3, counts_as, by)
    strategy = EchoPFL(**given, first_clusters=3, refine_every=0, broadcast="never")
    begun(strategy, torch.from_numpy(initial()), clients)
    homes = set()
    for _ in range(80):
        client, soft = int(rng.integers(clients)), rng.dirichlet(np.ones(3)) * 0.97 + 0.01
        model = rng.normal(size=6).astype(np.float32)
        (order,) = strategy.ready(client, 0.0)  # type: ignore[union-attr,misc]
        answers = {"soft-labels": soft.tolist()}
        handed = Update(client, order.version, order.weights, torch.from_numpy(model), 1, 1, answers=answers)
        list(strategy.updated(handed, 0.0) or ())
        server.received(client, model.astype(np.float64), soft)
        assert strategy.clusters.home == server.home
        homes.add(server.home[client])
    assert len(homes) == 3
    for number, expected in enumerate(server.models):
        np.testing.assert_allclose(strategy.clusters.branches[number].weights, expected, atol=1e-5)


models = arrays(np.float32, 5, elements=st.floats(-4, 4, width=16))


@given(models, models, models)
def test_echopfl_merges_two_models_as_algorithm_1_says(main: Any, other: Any, update: Any) -> None:
    found = merged("direction", *(torch.from_numpy(model) for model in (main, other, update)))
    np.testing.assert_allclose(
        found, echopfl.merged(*(one.astype(np.float64) for one in (main, other, update))), atol=1e-4
    )


@seeds
def test_what_echopfl_learns_from_are_the_labels_of_equation_4(seed: int) -> None:
    rng = np.random.default_rng(seed)
    places = np.cumsum(rng.normal(size=(12, 5)) * rng.choice([0.1, 1, 3], (12, 1)), axis=0).astype(np.float32)
    echo, sent = Echo(torch.from_numpy(places[0]), Predictor(pretrained().weights)), [True]
    outcomes = []
    for before, now in pairwise(places):
        echo.record(torch.from_numpy(now), float(np.abs(now - before).sum()))
        assert echo.predictor is not None
        outcomes = [bool(outcome) for _, outcome in echo.predictor.known]
        sent.append(echo.decide("rnn", 1.0))
        if sent[-1]:
            echo.mark_sent(torch.from_numpy(now))
    assert outcomes == echopfl.labels(list(places), sent)
    assert len(set(outcomes)) == 2
