"""What CASA has besides its paper: memory of comparisons, early reports, and the preset that is without them."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from contract.reference import casa_splits as reference
from polytempo import simulate
from polytempo.core.orders import Report, Train
from polytempo.strategies import Strategy, make_strategy
from polytempo.strategies.methods.casa import Casa
from polytempo.strategies.parts.decay import omega
from polytempo.testing import begun, update, vector

SIZE = 12


def clusters_of(strategy: Casa) -> list[list[int]]:
    return sorted(sorted(members) for members in strategy.clusters.members.values())


@pytest.mark.parametrize("name", ["casa", "casa+", "casa-d"])
def test_the_papers_preset_is_without_the_rules_of_ours(name):
    made: Any = make_strategy(name, {"preset": "paper"})
    assert (made.gamma, made.memory, made.coverage, made.patience, made.source) == (0.15, 0.0, 0.9, None, "delta")
    given: Any = make_strategy(name, {"preset": "paper", "patience": 2, "gamma": 0.3})
    assert (given.gamma, given.memory, given.coverage, given.patience) == (0.3, 0.0, 0.9, 2.0)
    assert make_strategy(name, {"patience": "none"}).parameters()["patience"] is None


@pytest.mark.parametrize("gamma", [0.15, 1.0])
@pytest.mark.parametrize("seed", range(12))
def test_a_cluster_splits_where_the_papers_algorithm_says_so(seed, gamma):
    rng = np.random.default_rng(seed)
    groups = rng.integers(1, 4)
    block = 0.5 * rng.uniform(0, 1, (9, 9)) ** 2 + rng.uniform(0, 0.5) * (
        np.arange(9)[:, None] % groups == np.arange(9) % groups
    )
    block = (block + block.T) / 2
    np.fill_diagonal(block, 1)
    strategy = Casa(gamma=gamma)
    begun(strategy, torch.zeros(SIZE), clients=9)
    strategy.t, strategy.fresh[0], strategy.similar.values[:9, :9] = 500, 36, block
    strategy._split_if_due(0, 0.0)
    assert bool(strategy.splits()) == reference.has_to_split(np.float32(block), 500, gamma)


def test_what_casa_remembers_of_a_pair_is_the_cosine_of_all_their_comparisons():
    strategy, rng = Casa(budget=100, coverage=1.0), np.random.default_rng(0)
    begun(strategy, torch.zeros(SIZE), clients=3)
    deltas = [rng.normal(0, 10.0 ** -(count // 2), SIZE).astype(np.float32) for count in range(6)]
    for count, delta in enumerate(deltas):  # clients 0 and 1 take turns, so each finds the other's last delta
        strategy.updated(update(count % 2, count // 2, torch.zeros(SIZE), torch.from_numpy(delta)), 0.0)
    comparisons = list(pairwise(deltas))
    assert strategy.similarity()[0, 1] == pytest.approx(reference.cosine_of_all(comparisons), abs=1e-6)


def pulled_apart(preset: str) -> Casa:
    """One group of clients that moves far, together, and then little, in two directions."""
    strategy = Casa(preset=preset, budget=1000)
    begun(strategy, torch.zeros(SIZE), clients=8)
    away = torch.zeros(SIZE)
    away[0] = 1.0
    for round_ in range(12):
        for client in range(8):
            aside = torch.zeros(SIZE)
            aside[1] = 0.1 if client % 2 else -0.1
            start, version = strategy.clusters.branch(client).weights, strategy.clusters.branch(client).version
            strategy.updated(update(client, version, start, start + (away if round_ < 3 else aside)), 0.0)
    return strategy


def test_small_pulls_around_a_model_that_has_arrived_do_not_split_its_group():
    assert clusters_of(pulled_apart("ours")) == [list(range(8))]
    assert len(clusters_of(pulled_apart("paper"))) > 1


def in_training(clients: int, **given: Any) -> Casa:
    """After these clients have joined one after the other, each at once in training."""
    strategy = Casa(**given)
    begun(strategy, vector(0.0, 0.0), clients=0)
    for client in range(clients):
        strategy.joined(client, 0.0)
        list(strategy.ready(client, 0.0) or ())
    return strategy


def reports(strategy: Strategy, client: int, version: int) -> list[int]:
    """Who is asked to report when this client hands in."""
    start = vector(0.0, 0.0)
    orders = list(strategy.updated(update(client, version, start, vector(1.0, 1.0)), 0.0) or ())
    for order in strategy.ready(client, 0.0) or ():
        assert isinstance(order, Train)
    assert all(isinstance(order, Report) for order in orders)
    return [order.client for order in orders]


@pytest.mark.parametrize(("given", "asked_at"), [({}, 6), ({"patience": 2.0}, 11), ({"preset": "paper"}, None)])
def test_who_never_handed_in_is_asked_once_to_report_when_staler_than_the_threshold(given, asked_at):
    strategy = in_training(5, **given)  # r_c is a little above 5
    asked = {count: reports(strategy, (count - 1) % 4, count - 1) for count in range(1, 20)}
    assert [count for count, clients in asked.items() if clients] == ([] if asked_at is None else [asked_at])
    assert asked_at is None or asked[asked_at] == [4]


def test_who_has_handed_in_once_is_not_asked_to_report():
    strategy = in_training(3)
    assert [reports(strategy, client, 0) for client in range(3)] == [[], [], []]
    assert not any(reports(strategy, count % 2, 3 + count) for count in range(20))


def test_an_early_report_is_mixed_in_by_its_staleness():
    strategy = in_training(5)
    for count in range(1, 7):
        asked = reports(strategy, count % 4, count - 1)
    assert asked == [4]
    before = strategy.model_for(4)
    strategy.updated(update(4, 0, vector(0.0, 0.0), vector(0.0, 9.0)), 0.0)
    alpha = 2 * omega(7, 0.001) / 3 / math.sqrt(6)
    assert strategy.model_for(4).tolist() == pytest.approx(torch.lerp(before, vector(0.0, 9.0), alpha).tolist())


def test_with_early_reports_severe_heterogeneity_does_not_delay_the_split():
    world = {"clients": 20, "updates": 200, "devices": "slow:0.3x10", "partition": "groups", "seed": 1}
    early, paper = (simulate("casa", parameters={"preset": preset}, **world) for preset in ("ours", "paper"))
    assert any(mark["kind"] == "report" for mark in early.marks)
    assert early.splits[0]["time"] < (paper.splits[0]["time"] if paper.splits else math.inf)
