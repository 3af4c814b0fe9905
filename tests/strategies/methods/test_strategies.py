"""The first methods against hand-computed updates, and against bugs that public versions have."""

import inspect
from dataclasses import replace

import pytest
import torch

from polytempo.core.errors import UserError
from polytempo.core.events import Update
from polytempo.core.orders import Train
from polytempo.core.state import digest, load, save
from polytempo.strategies import Strategy, make_strategy, strategies
from polytempo.strategies.base.participation import Quota
from polytempo.strategies.base.strategy import parameters
from polytempo.strategies.methods.fedasync import FedAsync
from polytempo.strategies.methods.fedavg import FedAvg
from polytempo.strategies.methods.fedavgm import FedAvgM
from polytempo.strategies.methods.fedbuff import FedBuff
from polytempo.strategies.methods.fedprox import FedProx
from polytempo.strategies.methods.standalone import Standalone, StandaloneAgain
from polytempo.strategies.parts.staleness import Constant, Hinge, Polynomial
from polytempo.testing import Planted, begun, update, vector


def orders_when_all_are_ready(strategy: Strategy, clients: int = 3) -> list[Train]:
    return [order for client in range(clients) for order in strategy.ready(client, 0.0) or ()]


def finish_round(strategy: Strategy, updates: list[Update]) -> None:
    for one in updates:
        strategy.updated(one, 1.0)


def test_staleness_functions_follow_their_formulas():
    assert Constant()(7) == 1
    assert Polynomial(0.5)(3) == pytest.approx(0.5)
    assert Hinge(10, 4)(4) == 1
    assert Hinge(10, 4)(6) == pytest.approx(1 / 21)


def test_hinge_staleness_falls_as_staleness_grows():
    values = [Hinge(2, 1)(tau) for tau in range(10)]
    assert values == sorted(values, reverse=True)
    assert all(0 < value <= 1 for value in values)


def test_fedasync_mixes_by_the_decayed_share():
    strategy = begun(FedAsync(mixing=0.6, staleness=Polynomial(0.5)), vector(0, 0))
    strategy.updated(update(0, 0, vector(0, 0), vector(1, 2)), 1.0)
    assert torch.allclose(strategy.model.weights, vector(0.6, 1.2))
    strategy.updated(update(1, 0, vector(0, 0), vector(1, 0)), 2.0)  # one version old: 0.6 / sqrt 2
    share = 0.6 / 2**0.5
    assert torch.allclose(strategy.model.weights, vector(0.6 + share * 0.4, 1.2 * (1 - share)))


def test_fedasync_keeps_mixing_as_strongly_after_many_updates():
    strategy = begun(FedAsync(mixing=0.5, staleness=Constant()), vector(0.0))
    for version in range(1000):
        strategy.updated(update(0, version, vector(0), vector(0)), 1.0)
    strategy.updated(update(0, 1000, vector(0), vector(1)), 1.0)
    assert strategy.model.weights.item() == pytest.approx(0.5)


def test_fedbuff_divides_by_the_buffer_size_exactly_once():
    strategy = begun(FedBuff(buffer_size=2, server_lr=1.0, staleness=Constant()), vector(0, 0))
    strategy.updated(update(0, 0, vector(0, 0), vector(2, 0)), 1.0)
    assert strategy.model.version == 0
    strategy.updated(update(1, 0, vector(0, 0), vector(0, 4)), 1.0)
    assert strategy.model.version == 1
    assert torch.equal(strategy.model.weights, vector(1, 2))


def test_fedbuff_weighs_deltas_by_staleness_and_starts_an_empty_buffer():
    strategy = begun(FedBuff(buffer_size=1, server_lr=2.0), vector(0.0))
    strategy.updated(update(0, 0, vector(0), vector(1)), 1.0)
    assert strategy.model.weights.item() == pytest.approx(2)
    strategy.updated(update(1, 0, vector(0), vector(1)), 1.0)  # tau = 1
    assert strategy.model.weights.item() == pytest.approx(2 + 2 / 2**0.5)


def test_what_derives_from_fedbuff_keeps_its_state_over_a_server_step():
    @parameters
    class Counting(FedBuff):
        def setup(self):
            super().setup()
            self.seen = 0

        def updated(self, update, now):
            super().updated(update, now)
            self.seen += 1

    strategy = begun(Counting(buffer_size=1), vector(0.0))
    for _ in range(3):
        strategy.updated(update(0, 0, vector(0), vector(1)), 1.0)
    assert strategy.seen == 3


def test_fedavg_averages_models_by_samples():
    strategy = begun(FedAvg(), vector(0, 0))
    assert [order.client for order in orders_when_all_are_ready(strategy)] == [0, 1, 2]
    start = vector(0, 0)
    finish_round(
        strategy,
        [
            update(2, 0, start, vector(4, 0), samples=2),
            update(0, 0, start, vector(0, 4), samples=1),
            update(1, 0, start, vector(0, 0), samples=1),
        ],
    )
    assert torch.equal(strategy.model.weights, vector(2, 1))
    assert strategy.model.version == 1


def test_fedavg_does_not_depend_on_the_order_of_arrival():
    results = []
    for order in ([0, 1, 2], [2, 1, 0]):
        strategy = begun(FedAvg(), vector(0, 0))
        orders_when_all_are_ready(strategy)
        finish_round(strategy, [update(c, 0, vector(0, 0), vector(0.1 * c, 0.3 + c), samples=c + 1) for c in order])
        results.append(strategy.model.weights)
    assert torch.equal(*results)


def test_a_round_goes_on_when_a_member_leaves():
    strategy = begun(FedAvg(), vector(0.0))
    orders_when_all_are_ready(strategy)
    strategy.updated(update(0, 0, vector(0), vector(1)), 1.0)
    strategy.ready(0, 1.0)
    strategy.updated(update(1, 0, vector(0), vector(3)), 2.0)
    strategy.ready(1, 2.0)
    next_round = list(strategy.left(2, 3.0) or ())
    assert strategy.model.weights.item() == pytest.approx(2)
    assert [order.client for order in next_round] == [0, 1]


def test_a_share_of_clients_takes_part_in_a_round():
    strategy = begun(FedAvg(), vector(0.0), clients=10, participation=Quota(share=0.3))
    assert len(orders_when_all_are_ready(strategy, 10)) == 3


def test_fedavgm_adds_momentum_on_the_server():
    strategy = begun(FedAvgM(server_momentum=0.5), vector(0.0), clients=1)
    for version, (start, end) in enumerate([(0, 1), (1, 2)]):
        list(strategy.ready(0, 0.0))
        strategy.updated(update(0, version, vector(start), vector(end)), 1.0)
    assert strategy.model.weights.item() == pytest.approx(1 + 1.5)


def test_fedprox_orders_a_proximal_term_for_every_client():
    strategy = begun(FedProx(mu=0.25), vector(0.0))
    assert [order.objective.proximal for order in orders_when_all_are_ready(strategy)] == [0.25] * 3


def test_fedasync_orders_a_proximal_term_if_it_has_a_weight():
    orders = [orders_when_all_are_ready(begun(FedAsync(proximal=weight), vector(0.0)))[0] for weight in (0.0, 0.25)]
    assert [order.objective.proximal for order in orders] == [0.0, 0.25]


def test_standalone_clients_go_on_from_their_own_model():
    strategy = begun(Standalone(), vector(0.0))
    strategy.updated(update(1, 0, vector(0), vector(5)), 1.0)
    assert strategy.model_for(1).item() == 5
    assert strategy.model_for(0).item() == 0
    assert next(iter(strategy.ready(1, 1.0))).weights.item() == 5


def test_standalone_again_orders_the_same_work_with_other_random_numbers():
    alone, again = (next(iter(begun(cls(), vector(0.0)).ready(1, 0.0))) for cls in (Standalone, StandaloneAgain))
    assert again == replace(alone, work=replace(alone.work, stream=1))
    assert [order.work.stream_keys(1, 7) for order in (alone, again)] == [(1, 7), (1, 7, 1)]


def test_a_vector_that_was_handed_out_never_changes():
    strategy = begun(FedAsync(), vector(0.0))
    handed_out = strategy.model_for(0)
    strategy.updated(update(0, 0, vector(0), vector(1)), 1.0)
    strategy.updated(update(0, 1, vector(0), vector(1)), 1.0)
    assert handed_out.item() == 0


@pytest.mark.parametrize(("cls", "most"), [(FedAsync, 25), (FedBuff, 35)])
def test_a_method_fits_on_a_screen(cls, most):
    lines = inspect.getsource(inspect.getmodule(cls)).splitlines()
    assert sum(bool(line.strip()) and not line.strip().startswith(('"""', "#")) for line in lines) <= most


def test_an_unknown_parameter_is_answered_with_the_nearest():
    with pytest.raises(UserError, match="Did you mean 'mixing'"):
        make_strategy("fedasync", {"mixin": 0.1})


def test_an_unknown_strategy_is_answered_with_the_nearest():
    with pytest.raises(UserError, match="Did you mean 'fedasync'"):
        make_strategy("fedasink", {})


@pytest.mark.parametrize("bad", [{"mixing": 0}, {"mixing": 1.5}, {"staleness": "hinge:x"}, {"staleness": "hing"}])
def test_a_bad_parameter_is_refused_by_name(bad):
    with pytest.raises(UserError, match=next(iter(bad))):
        make_strategy("fedasync", bad)


@pytest.mark.parametrize("name", list(strategies))
def test_every_strategy_goes_back_to_a_saved_state(name, tmp_path):
    proxies = {"proxies": Planted(vector(0, 0), vector(1, 0))}
    one, other = (begun(make_strategy(name, {}), vector(0, 0), objects=proxies) for _ in range(2))
    orders = orders_when_all_are_ready(one)
    for order in orders[:2]:
        one.updated(update(order.client, order.version, order.weights, vector(1, 2)), 1.0)
    save(one.save_state(), tmp_path / "state")
    other.load_state(load(tmp_path / "state"))
    assert digest(other.save_state()) == digest(one.save_state())
    for each in (one, other):
        each.updated(update(orders[2].client, orders[2].version, orders[2].weights, vector(3, 1)), 2.0)
    assert digest(other.save_state()) == digest(one.save_state())
