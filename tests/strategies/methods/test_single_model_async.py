"""PORT, FedAC, ASAFL and CA2FL against hand-computed updates."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from polytempo.core.errors import UserError
from polytempo.core.orders import Candidates, Objective, Report, Train, Work
from polytempo.core.schedules import Schedule
from polytempo.sim.records.evaluation import Stop
from polytempo.strategies import Setting, Strategy, make_strategy, strategies
from polytempo.strategies.methods.asafl import ASAFL
from polytempo.strategies.methods.ca2fl import CA2FL
from polytempo.strategies.methods.fedac import FedAC, way_per_gradient
from polytempo.strategies.methods.fedbuff import FedBuff
from polytempo.strategies.methods.port import Port
from polytempo.strategies.parts.member_mean import MemberMean
from polytempo.strategies.parts.staleness import Constant
from polytempo.testing import begun, simulator, update, vector
from polytempo_client.model.schema import Schema

ALL = ["port", "fedac", "asafl", "ca2fl"]


def order_of(strategy: Strategy, client: int) -> Train:
    """The one order that a client gets when it is ready."""
    (order,) = strategy.ready(client, 0.0)
    return order


def hand_in(strategy: Strategy, order: Train, delta: Tensor, samples: int = 1, steps: int = 1) -> list[object]:
    """The orders that follow when the order's client comes back with this delta."""
    handed = update(order.client, order.version, order.weights, order.weights + delta, samples)
    return list(strategy.updated(replace(handed, steps=steps), 1.0) or ())


def served(strategy: Strategy, client: int, *delta: float) -> list[object]:
    """A client asks for work and comes back with this delta at once."""
    return hand_in(strategy, order_of(strategy, client), vector(*delta))


# What an order costs


def test_an_order_is_as_large_as_the_vectors_that_it_carries():
    w = vector(1, 2)
    order = Train(0, w, 0, Work())
    assert order.models_down == 1
    assert replace(order, candidates=Candidates((w, w, w), (0, 0, 0))).models_down == 3
    assert replace(order, objective=Objective(proximal=1.0)).models_down == 1
    assert replace(order, objective=Objective(anchor=w, linear=w)).models_down == 3


def test_downloading_a_correction_takes_bytes_and_time(tmp_path):
    devices = tmp_path / "devices.toml"
    devices.write_text("jitter = 0.0\n[network]\ndown = 60.0\nup = 30.0\nlatency = 1.0\n")
    sim = simulator(FedAC(), clients=1, devices=str(devices), stop=Stop(updates=1))
    sim.run()
    model_bytes = 4 * 15
    assert sim.now == pytest.approx((1 + 2 * model_bytes / 60) + 4 + (1 + model_bytes / 30))
    assert (sim.traffic.bytes_down, sim.traffic.bytes_up) == (
        4 * model_bytes,
        model_bytes,
    )  # one more download has begun


# PORT


def test_ports_first_step_is_the_mean_by_samples():
    strategy = begun(Port(min_updates=2), vector(0, 0))
    first, second = order_of(strategy, 0), order_of(strategy, 1)
    hand_in(strategy, first, vector(1, 0), samples=3)
    assert strategy.model.version == 0
    hand_in(strategy, second, vector(0, 1), samples=1)
    assert torch.allclose(strategy.model.weights, vector(0.75, 0.25))
    assert strategy.model.version == 1


def test_port_weighs_by_freshness_and_by_agreement_with_the_last_step():
    strategy = begun(Port(min_updates=2, freshness=2.0, agreement=3.0, staleness_bound=4), vector(0, 0), clients=4)
    late = order_of(strategy, 3)
    for client in (0, 1):
        served(strategy, client, 1, 0)
    assert torch.equal(strategy.model.weights, vector(1, 0))
    fresh = order_of(strategy, 2)
    hand_in(strategy, late, vector(0, 5), samples=2)
    hand_in(strategy, fresh, vector(-1, 0), samples=1)
    stale_weight = 2 * (2 * 4 / (1 + 4) + 3 * (1 + 0) / 2)
    opposing_weight = 1 * (2 * 4 / (0 + 4) + 3 * (1 - 1) / 2)
    total = stale_weight + opposing_weight
    assert torch.allclose(strategy.model.weights, vector(1 - opposing_weight / total, 5 * stale_weight / total))


def test_port_in_platos_form_looks_at_the_direction_of_updates_that_are_two_versions_old():
    strategy = begun(Port(preset="plato", min_updates=2, staleness_bound=4), vector(0, 0), clients=4)
    late = order_of(strategy, 3)
    for client in (0, 1):
        served(strategy, client, 1, 0)
    fresh = order_of(strategy, 2)
    for client in (0, 1):
        served(strategy, client, 1, 0)
    assert torch.equal(strategy.model.weights, vector(2, 0))
    hand_in(strategy, late, vector(-3, 0))
    hand_in(strategy, fresh, vector(-1, 0))
    stale_weight = 4 / (2 + 4) + (1 - 1) / 2
    fresh_weight = 4 / (1 + 4) + (1 + 1) / 2  # although it opposes the last step
    moved = (3 * stale_weight + fresh_weight) / (stale_weight + fresh_weight)
    assert torch.allclose(strategy.model.weights, vector(2 - moved, 0))


def test_port_asks_a_client_beyond_the_staleness_bound_once_to_report():
    strategy = begun(Port(min_updates=1, staleness_bound=2), vector(0, 0))
    slow = order_of(strategy, 0)
    asked = [served(strategy, 1, 1, 0) for _ in range(5)]
    assert asked == [[], [], [Report(0)], [], []]  # 3 > 2 steps after it started
    hand_in(strategy, slow, vector(0, 1))
    order_of(strategy, 0)
    assert [served(strategy, 1, 1, 0) for _ in range(3)][-1] == [Report(0)]  # a new order, a new count


def test_port_asks_nobody_who_has_left():
    strategy = begun(Port(min_updates=1, staleness_bound=1), vector(0, 0))
    order_of(strategy, 0)
    list(strategy.left(0, 0.0))
    assert [served(strategy, 1, 1, 0) for _ in range(4)] == 4 * [[]]


def test_ports_slow_clients_report_early_in_a_run():
    strategy = Port(min_updates=1, staleness_bound=2)
    sim = simulator(strategy, clients=6, devices="slow:0.2x50", stop=Stop(updates=30))
    sim.run()
    steps = {row["steps"] for row in sim.history.updates if row["staleness"] > 2}
    assert steps
    assert max(steps) < 4


# CA2FL


def test_ca2fl_calibrates_by_the_cached_updates():
    strategy = begun(CA2FL(buffer_size=2, server_lr=0.5), vector(0, 0), clients=4)
    served(strategy, 0, 4, 0)
    served(strategy, 1, 0, 8)
    assert torch.allclose(strategy.model.weights, vector(1, 2))  # nothing cached: .5 times the mean of the buffer
    served(strategy, 0, 6, 0)
    served(strategy, 2, 2, 2)
    cached_mean = vector(4 / 4, 8 / 4)
    changes = vector((6 - 4) + 2, 2) / 2
    assert torch.allclose(strategy.model.weights, vector(1, 2) + 0.5 * (cached_mean + changes))


def test_ca2fl_moves_by_the_mean_of_the_cache_when_nobody_changes_direction():
    strategy = begun(CA2FL(buffer_size=3), vector(0, 0))
    deltas = [(3, 0), (0, 3), (3, 3)]
    for client, delta in enumerate(deltas):
        served(strategy, client, *delta)
    before = strategy.model.weights
    for _ in range(3):
        served(strategy, 0, *deltas[0])  # however often the fastest client comes
    assert torch.allclose(strategy.model.weights - before, vector(2, 2))


def test_ca2fl_with_everybody_in_the_buffer_is_fedbuff_without_decay():
    ours = begun(CA2FL(buffer_size=3), vector(0, 0))
    theirs = begun(FedBuff(buffer_size=3, staleness=Constant()), vector(0, 0))
    for strategy in (ours, theirs):
        for k in range(9):
            served(strategy, k % 3, k, -2 * k)
    assert torch.allclose(ours.model.weights, theirs.model.weights)


def test_ca2fl_caches_after_the_step_and_keeps_the_last_of_two_updates():
    strategy = begun(CA2FL(buffer_size=2), vector(0))
    served(strategy, 0, 1)
    served(strategy, 0, 5)
    assert torch.allclose(strategy.model.weights, vector(3))
    assert torch.equal(strategy.cached.of(0), vector(5))


def test_a_client_that_left_takes_its_cached_update_along_but_its_last_one_counts():
    strategy = begun(CA2FL(buffer_size=2), vector(0), clients=3)
    for client, delta in ((0, 3), (1, 6)):
        served(strategy, client, delta)
    at = float(strategy.model.weights)
    served(strategy, 0, 5)
    list(strategy.left(0, 2.0))
    served(strategy, 1, 6)
    assert float(strategy.model.weights) == pytest.approx(at + 6 / 2 + ((5 - 3) + 0) / 2)  # mean over two members
    assert 0 not in strategy.cached.vectors


def test_the_running_mean_is_the_mean_over_all_members():
    mean = MemberMean(vector(0, 0))
    for client, given in ((0, (1, 2)), (1, (3, 4)), (0, (5, 6)), (2, (7, 8))):
        mean.put(client, vector(*given))
    mean.forget(1)
    mean.forget(9)
    assert torch.allclose(mean.mean(4), vector((5 + 7) / 4, (6 + 8) / 4))
    assert torch.equal(mean.of(1), vector(0, 0))


# ASAFL


def test_asafl_mixes_less_the_farther_a_model_is_away():
    strategy = begun(ASAFL(mixing=0.6), vector(0, 0))
    strategy.updated(update(0, 0, vector(0, 0), vector(3, 4)), 1.0)
    assert torch.allclose(strategy.model.weights, vector(3, 4) * 0.6 / 6)
    strategy.updated(update(1, 0, vector(0, 0), strategy.model.weights), 2.0)
    assert torch.allclose(strategy.model.weights, vector(0.3, 0.4))


def test_asafl_says_that_it_is_reconstructed():
    assert make_strategy("asafl", {}).__doc__.startswith("Reconstructed")


# FedAC


def fedac(clients: int = 2, work: Work | None = None, **given: float) -> FedAC:
    strategy = FedAC(**{"buffer_size": 2, **given})
    strategy.begin(Setting(vector(0, 0), Schema(("w",), ((2,),), 2), work or Work(lr=0.1)))
    for client in range(clients):
        strategy.joined(client, 0.0)
    return strategy


def test_fedac_looks_ahead_along_its_momentum():
    strategy = fedac(beta1=0.6, beta2=0.9, server_lr=0.01)
    moment, square, at = 0.0, 0.0, 0.0
    for mean in (3.0, -1.0, 2.0):
        for client, order in enumerate([order_of(strategy, 0), order_of(strategy, 1)]):
            hand_in(strategy, order, vector(mean + 1 - 2 * client, 0))  # equally fresh: plain mean
        moment = 0.6 * moment + 0.4 * mean
        square = 0.9 * square + 0.1 * mean**2
        at += 0.01 * (0.6 * moment + 0.4 * mean) / math.sqrt(square)
        assert torch.allclose(strategy.model.weights, vector(at, 0))


def test_fedac_weighs_an_update_by_how_well_it_agrees_with_the_way_since_its_start():
    strategy = fedac(clients=5, beta1=0.0, beta2=0.0, server_lr=1.0)
    agreeing, opposing = order_of(strategy, 2), order_of(strategy, 3)
    for client in (0, 1):
        served(strategy, client, 1, 0)
    hand_in(strategy, agreeing, vector(3, 4))
    hand_in(strategy, opposing, vector(-2, 0))
    assert torch.allclose(strategy.mean_square.sqrt(), vector(0.6 * 3 - 0.1 * 2, 0.6 * 4) / 0.7)


def test_fedac_sends_the_mean_variate_less_the_clients_own():
    strategy = fedac(clients=4)
    first = order_of(strategy, 0)
    assert torch.equal(first.objective.linear, vector(0, 0))
    hand_in(strategy, first, vector(-1, 2), steps=5)  # mean gradient: (1, -2) / (5 * .1)
    own = vector(2, -4)
    assert torch.allclose(order_of(strategy, 0).objective.linear, own / 4 - own)
    assert torch.allclose(order_of(strategy, 1).objective.linear, own / 4)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fedacs_variate_is_the_mean_gradient_whatever_the_correction_and_the_momentum(momentum: float):
    gradient, correction, steps = vector(1.0, -3.0), vector(-0.25, 2.0), 7
    work = Work(lr=Schedule("step", 0.1, 0.5, 1), momentum=momentum)
    w, velocity = vector(0, 0), vector(0, 0)
    for _ in range(steps):
        velocity = momentum * velocity + gradient + correction
        w = w - 0.05 * velocity  # the client's second task: its rate has halved
    strategy = fedac(work=work)
    served(strategy, 0, 0, 0)
    order = order_of(strategy, 0)
    strategy.corrections[0] = correction
    hand_in(strategy, order, w, steps=steps)
    assert torch.allclose(strategy.variates.of(0), gradient, atol=1e-5)


def test_without_momentum_a_gradient_leads_as_far_as_rate_times_steps():
    assert way_per_gradient(Work(lr=0.1), 7, 0) == pytest.approx(0.7)
    assert way_per_gradient(Work(lr=0.1, momentum=0.9), 100_000, 0) == pytest.approx(100_000 * 0.1 / 0.1, rel=1e-3)


def test_fedac_counts_lost_tasks_and_forgets_the_variates_of_clients_that_left():
    strategy = fedac(clients=3)
    served(strategy, 0, -1, 2)
    order_of(strategy, 0)
    list(strategy.left(0, 2.0))
    assert strategy.tasks[0] == 2
    assert not strategy.corrections
    assert torch.equal(order_of(strategy, 1).objective.linear, vector(0, 0))


def test_an_update_without_steps_leaves_fedacs_variate_as_it_was():
    strategy = fedac()
    served(strategy, 0, 1, 1)
    before = strategy.variates.of(0)
    hand_in(strategy, order_of(strategy, 0), vector(0, 0), steps=0)
    assert torch.equal(strategy.variates.of(0), before)


def test_fedac_averages_statistics_and_does_not_scale_them():
    strategy = FedAC(buffer_size=1)
    strategy.begin(Setting(vector(0, 1), Schema(("w", "variance"), ((1,), (1,)), 1), Work()))
    strategy.joined(0, 0.0)
    served(strategy, 0, 5, -0.5)
    assert float(strategy.model.weights[1]) == 0.5
    assert float(strategy.model.weights[0]) < 0.1


def test_fedac_with_adam_is_refused():
    with pytest.raises(UserError, match="--optimizer sgd"):
        fedac(work=Work(optimizer="adam"))


# All four


@pytest.mark.parametrize("name", ALL)
def test_defaults_are_what_paces_comparison_names(name: str):
    named = {
        "port": {"min_updates": 5, "freshness": 1.0, "agreement": 1.0, "staleness_bound": 10},
        "fedac": {"buffer_size": 5, "beta2": 0.9, "server_lr": 0.01},
        "asafl": {"mixing": 0.01},
        "ca2fl": {},
    }
    given = strategies[name]().parameters()
    assert {key: given[key] for key in named[name]} == named[name]


@pytest.mark.parametrize("name", ALL)
def test_an_update_counts_though_its_client_left(name: str):
    strategy = begun(make_strategy(name, {}), vector(0, 0), clients=12)
    served(strategy, 0, 1, 0)
    list(strategy.left(0, 1.0))
    for client in range(1, 11):
        served(strategy, client, 0, 1)
    assert float(strategy.model.weights[0]) > 0
