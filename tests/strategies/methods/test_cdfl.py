"""CDFL and FedSoft-Async: the formulas by hand, and what happens to clusters and clients."""

import numpy as np
import pytest
from torch import Tensor

from polytempo.core.errors import UserError
from polytempo.core.events import Update
from polytempo.core.orders import Train
from polytempo.strategies import Setting, make_strategy
from polytempo.strategies.methods.cdfl import (
    CDFL,
    relevance,
)
from polytempo.strategies.methods.fedsoft_async import FedSoftAsync
from polytempo.testing import Planted, begun, update, vector
from polytempo_client.model.schema import Schema


def cdfl(*models: Tensor, clients: int = 2, **given: object) -> CDFL:
    made = make_strategy("cdfl", given)
    assert isinstance(made, CDFL)
    return begun(made, vector(0, 0), clients, objects={"proxies": Planted(*models)})


LEFT, RIGHT = vector(0, 0), vector(4, 0)


def test_the_relevance_of_an_update_by_hand() -> None:
    assert relevance(np.array([0.5, 0.3, 0.15, 0.05]), 1 / 8) == pytest.approx([1, 0.6, 0.3, 0])


def test_an_update_moves_the_clusters_that_it_concerns_and_is_answered_with_their_mixture() -> None:
    server = cdfl(LEFT, RIGHT, estimate="paper", sharpness=4.0)
    v = vector(1, 0)
    server.updated(update(0, 0, LEFT, v), 1.0)
    # losses (1, 3), d1 (|0 - 1|, |0 - 3|), d2 (1, 3): every measure says (3/4, 1/4)
    a = 1 / (1 + np.exp(-4.0 * 0.5))
    assert server.mixture(0) == pytest.approx([a, 1 - a])
    # 1 - a = 0.119 is below 1/(2 K) = 1/4: the right cluster stays; age 1/2 < 1
    left, right = server.cluster_models()
    assert left.tolist() == pytest.approx([0.025, 0])
    assert right.tolist() == [4, 0]
    assert server.model_for(0).tolist() == pytest.approx([a * 0.025 + (1 - a) * 4, 0])
    (order,) = server.ready(0, 1.0)
    assert isinstance(order, Train)
    assert (order.version, order.objective.proximal) == (1, 0.1)
    assert order.models_down == 1
    assert order.weights.tolist() == server.model_for(0).tolist()


def test_an_older_update_counts_less() -> None:
    server = cdfl(LEFT, RIGHT, clients=2, estimate="paper", sharpness=1000.0)
    server.t = 4  # the update is number 5, of version 0: an age of 5 updates, 2.5 clients
    server.updated(update(0, 0, LEFT, vector(1, 0)), 1.0)
    assert server.cluster_models()[0].tolist() == pytest.approx([0.025 / (10 * (2.5 - 1) + 1), 0])


def test_an_update_of_the_usual_age_counts_in_full() -> None:
    """Clients in turn: each is as old as there are clients."""
    server = cdfl(LEFT, RIGHT, clients=4)
    assert [server.freshness(age) for age in (0.5, 1.0, 1.1)] == pytest.approx([1, 1, 1 / 2])
    paper = cdfl(LEFT, RIGHT, clients=4, preset="paper")
    assert [paper.freshness(age) for age in (4, 5)] == pytest.approx([1, 1 / 51])


def test_the_papers_ages_count_in_updates() -> None:
    server = cdfl(LEFT, RIGHT, clients=100, preset="paper", sharpness=1000.0)
    assert {name: server.resolved()[name] for name in ("tau0", "b")} == {"tau0": 40, "b": 5}
    server.t = 5
    server.updated(update(0, 0, LEFT, vector(1, 0)), 1.0)
    assert server.cluster_models()[0].tolist() == pytest.approx([0.025 / (10 * 6 + 1), 0])


def test_our_defaults_and_the_papers() -> None:
    three = (LEFT, RIGHT, vector(0, 4))
    ours, paper = cdfl(*three).resolved(), cdfl(*three, preset="paper").resolved()
    assert ours == pytest.approx({"tau0": 4, "b": 1, "sharpness": 1, "b1_bar": 1 / 6})
    assert cdfl(*three, estimate="paper").resolved() == pytest.approx({**ours, "sharpness": 36})
    assert paper == pytest.approx({"tau0": 60, "b": 5, "sharpness": 36, "b1_bar": 1 / 6})


def test_a_deprecated_client_changes_no_cluster_and_gets_a_fresh_estimate() -> None:
    server = cdfl(LEFT, RIGHT, clients=2)
    server.t = 8
    before = [model.clone() for model in server.cluster_models()]
    server.updated(update(0, 0, LEFT, vector(4, 0)), 1.0)  # an age of 9 updates, 4.5 clients
    assert [model.tolist() for model in server.cluster_models()] == [model.tolist() for model in before]
    assert server.mixture(0)[1] > 0.7
    assert server.t == 9


def test_a_deprecated_client_of_the_papers_preset_gets_its_last_mixture() -> None:
    server = cdfl(LEFT, RIGHT, clients=2, preset="paper")
    server.t = 40
    server.updated(update(0, 0, LEFT, vector(4, 0)), 1.0)
    assert server.mixture(0) is None
    assert server.model_for(0).tolist() == [2, 0]  # uniform: it has none
    server.updated(update(0, 41, LEFT, vector(0, 0)), 2.0)
    known = server.mixture(0)
    assert known is not None
    assert known[0] > 0.9
    server.t = 90
    server.updated(update(0, 41, LEFT, vector(4, 0)), 3.0)
    assert server.mixture(0) is known


def test_one_cluster_is_everybodys() -> None:
    server = cdfl(LEFT)
    server.updated(update(0, 0, LEFT, vector(1, 0)), 1.0)
    assert server.mixture(0) == pytest.approx([1])
    assert server.model_for(1).tolist() == pytest.approx([0.025, 0])


def test_a_new_client_in_the_middle_of_a_run_begins_with_the_mean_of_the_clusters() -> None:
    server = cdfl(LEFT, RIGHT)
    for number in range(5):
        server.updated(update(0, number, LEFT, vector(0, 1)), float(number))
    server.joined(7, 6.0)
    (order,) = server.ready(7, 6.0)
    left, right = server.cluster_models()
    assert (order.version, order.weights.tolist()) == (5, pytest.approx(((left + right) / 2).tolist()))
    server.updated(update(7, 5, order.weights, vector(4, 0)), 7.0)
    assert server.cluster_of(7) == 1


def test_who_leaves_and_comes_back_is_known_and_may_bring_an_old_version() -> None:
    server = cdfl(LEFT, RIGHT, clients=3)
    server.updated(update(0, 0, LEFT, vector(4, 0)), 1.0)
    server.left(0, 2.0)
    server.joined(0, 3.0)
    (order,) = server.ready(0, 3.0)
    assert order.weights[0] > 2.5
    for turn in range(20):
        server.updated(update(1, server.t, LEFT, vector(0, 0)), 4.0 + turn)
    before = [model.tolist() for model in server.cluster_models()]
    server.updated(update(0, 1, LEFT, vector(-1, 0)), 30.0)  # an age of 21 updates, 7 clients
    assert [model.tolist() for model in server.cluster_models()] == before
    assert server.cluster_of(0) == 0


def test_a_pull_is_answered_with_the_clients_mixture_and_is_no_refresh() -> None:
    server = cdfl(LEFT, RIGHT)
    assert server.pulled(0, 1.0) is None  # the service then sends model_for
    assert server.model_for(0).tolist() == [2, 0]


def test_the_papers_estimate_takes_one_pass_over_all_proxy_sets_and_one_over_that_of_each_cluster_that_moves() -> None:
    server = cdfl(LEFT, RIGHT, vector(0, 4), estimate="paper")
    passes: list[object] = []
    proxies = server.setting.objects["proxies"]
    all_of_them, one = proxies.losses, proxies.loss
    proxies.losses = lambda weights: (passes.append("all"), np.array([one(weights, k) for k in range(3)]))[1]
    proxies.loss = lambda weights, k: (passes.append(k), one(weights, k))[1]
    server.updated(update(0, 0, LEFT, vector(0.1, 0)), 1.0)
    assert passes == ["all", 0]
    assert server.losses.tolist() == pytest.approx([one(model, k) for k, model in enumerate(server.cluster_models())])
    assert all_of_them(LEFT).tolist() == [0, 4, 4]


def test_without_the_weight_of_the_cluster_models_losses_an_update_costs_one_pass() -> None:
    server = cdfl(LEFT, RIGHT, estimate="paper", c2=0.0)
    proxies = server.setting.objects["proxies"]
    proxies.losses = lambda weights: np.array([1.0, 3.0])
    proxies.loss = None
    server.updated(update(0, 0, LEFT, vector(1, 0)), 1.0)
    assert server.cluster_models()[0].tolist() == pytest.approx([0.025, 0])


@pytest.mark.parametrize("estimate", ["direction", "paper"])
@pytest.mark.parametrize("k", [2, 3, 4, 6])
def test_the_estimate_orders_planted_mixtures_rightly(k: int, estimate: str) -> None:
    """A model that lies between the clusters' models, nearer to those of which it has more."""
    models = [vector(*(8.0 * (i == j) for j in range(k))) for i in range(k)]
    made = make_strategy("cdfl", {"estimate": estimate})
    server = begun(made, vector(*[0.0] * k), 2, objects={"proxies": Planted(*models)})
    true = np.arange(1, k + 1) / np.arange(1, k + 1).sum()
    v = sum((float(share) * model for share, model in zip(true, models, strict=True)), vector(*[0.0] * k))
    server.updated(update(0, 0, vector(*[0.0] * k), v), 1.0)
    assert np.argsort(server.mixture(0)).tolist() == np.argsort(true).tolist()


@pytest.mark.parametrize("estimate", ["direction", "paper"])
def test_a_model_whose_loss_cannot_be_told_changes_nothing(estimate: str) -> None:
    server = cdfl(LEFT, RIGHT, estimate=estimate)
    before = [model.tolist() for model in server.cluster_models()]
    server.updated(update(0, 0, LEFT, vector(1e30, 1e30)), 1.0)
    assert [model.tolist() for model in server.cluster_models()] == before
    assert np.isfinite(server.model_for(0).numpy()).all()


def test_without_proxy_sets_the_method_says_what_it_needs() -> None:
    with pytest.raises(UserError, match="proxy sets"):
        make_strategy("cdfl", {}).begin(Setting(LEFT, Schema(("w",), ((2,),), 2)))


def test_weights_of_the_estimate_beyond_one_are_refused() -> None:
    with pytest.raises(UserError, match=r"c1 \+ c2"):
        make_strategy("cdfl", {"c1": 0.7, "c2": 0.5})


# FedSoft-Async


def fedsoft(*models: Tensor, clients: int = 2) -> FedSoftAsync:
    made = make_strategy("fedsoft-async", {})
    assert isinstance(made, FedSoftAsync)
    return begun(made, vector(0, 0), clients, objects={"proxies": Planted(*models)})


def answered(shares: object) -> Update:
    return Update(0, 0, LEFT, vector(1, 1), 1, 1, answers={"losses": [1.0, 1.0], "shares": shares})


def test_fedsoft_sends_all_cluster_models_and_moves_each_by_its_share() -> None:
    server = fedsoft(LEFT, RIGHT)
    (order,) = server.ready(0, 0.0)
    assert order.models_down == 2
    assert order.candidates is not None
    assert order.candidates.use == "mixture"
    server.updated(answered([0.75, 0.25]), 1.0)
    left, right = server.cluster_models()
    assert left.tolist() == pytest.approx([0.025 * 0.75, 0.025 * 0.75])
    assert right.tolist() == pytest.approx([4 - 3 * 0.025 * 0.25, 0.025 * 0.25])
    assert server.mixture(0) == pytest.approx([0.75, 0.25])


@pytest.mark.parametrize("shares", [None, "half", [1.0], [0.5, float("nan")], [-1.0, 2.0], [3.0, 3.0], [10**400, 0]])
def test_shares_that_are_none_leave_the_last_known_ones(shares: object) -> None:
    server = fedsoft(LEFT, RIGHT)
    server.updated(answered([0.75, 0.25]), 1.0)
    server.updated(answered(shares), 2.0)
    assert server.mixture(0) == pytest.approx([0.75, 0.25])
    assert server.t == 2


def test_shares_that_nearly_sum_to_one_are_brought_to_the_simplex() -> None:
    server = fedsoft(LEFT, RIGHT)
    server.updated(answered([0.7504, 0.2501]), 1.0)
    assert server.shares[0].sum() == pytest.approx(1, abs=1e-12)
