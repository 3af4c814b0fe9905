"""FedSEA: points by predicted arrivals, work that fits, nothing thrown away, nobody waits forever."""

from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polytempo.core.orders import SetTimer, Work
from polytempo.core.state import digest, pack, unpack
from polytempo.sim.records.evaluation import Stop
from polytempo.strategies import Setting, make_strategy
from polytempo.strategies.base.participation import EVERYONE, Quota
from polytempo.strategies.methods.fedsea import Awaited, FedSEA, Speed
from polytempo.strategies.parts.compass import ArrivalGroup
from polytempo.testing import ScriptedClock, simulator, update, vector
from polytempo_client.model.schema import Schema


def fedsea(clients, full=10, participation=EVERYONE, **given):
    strategy = FedSEA(**given)
    work = Work(steps=full, epochs=None)
    strategy.begin(Setting(vector(0.0), Schema(("w",), ((1,),), 1), work, participation))
    for client in range(clients):
        strategy.joined(client, 0.0)
    return strategy


def clocked(*seconds, **given):
    return ScriptedClock(fedsea(len(seconds), **given), seconds)


def test_the_mean_is_by_samples_and_staleness():
    strategy = fedsea(2)
    strategy.model.step(vector(0.0))
    strategy.model.step(vector(0.0))
    strategy.model.step(vector(0.0))
    fresh, stale = update(0, 3, vector(0), vector(1), samples=2), update(1, 0, vector(0), vector(7), samples=4)
    assert [strategy.weight(fresh), strategy.weight(stale)] == [2, 4 * 0.5]
    strategy.aggregate([fresh, stale])
    assert strategy.model.weights.item() == pytest.approx((2 * 1 + 2 * 7) / 4)


def test_the_first_point_is_when_the_share_has_arrived():
    clients = clocked(1.0, 2.0, 3.0, 4.0, share=0.5)
    clients.run(until=19.0)
    assert clients.strategy.model.version == 0
    assert list(clients.training) == [1, 2, 3]  # who has come waits for the point
    clients.run(until=20.0)
    assert clients.strategy.model.version == 1
    assert {0, 1} <= set(clients.training)


def test_a_point_is_set_for_when_the_share_would_have_come_with_full_work():
    strategy = fedsea(5, share=0.5)
    strategy.speeds = {0: Speed(1.0, 10), 1: Speed(3.0, 20)}
    strategy.training = {2: Awaited(0.0, 115.0), 3: Awaited(0.0, 99.0), 4: Awaited(0.0, 300.0)}
    # Arrivals at 110, 160, 115 and 300; client 3 is overdue, of which nothing can be said.
    assert strategy._predicted([0, 1], now=100.0) == 160.0
    strategy.share = 0.2
    assert strategy._predicted([0, 1], now=100.0) == 110.0
    strategy.share = 1.0
    assert strategy._predicted([0, 1], now=100.0) == float("inf")


def test_a_client_does_what_fits_until_the_point_or_all_if_that_is_too_little():
    strategy = fedsea(4, least_work=0.25)
    strategy.speeds = {0: Speed(1.0, 8), 1: Speed(2.0, 8), 2: Speed(5.0, 8), 3: Speed(6.0, 8)}
    strategy.point = ArrivalGroup(1, 110.0, 112.0)
    assert [strategy._fitting(client, 100.0) for client in range(4)] == [8, 5, 2, None]
    assert strategy._fitting(9, 100.0) is None
    orders = [strategy.order_for(client, 100.0) for client in (1, 3)]
    assert [order.work.steps for order in orders] == [5, 10]
    assert [order.due is not None for order in orders] == [True, False]
    assert strategy.training == {1: Awaited(100.0, 110.0), 3: Awaited(100.0, 148.0)}
    assert list(strategy.point.waiting) == [1]


def test_clients_of_different_speeds_arrive_together():
    clients = clocked(1.0, 1.5, 2.1, 3.3, 4.7, full=30)
    clients.run(updates=60)
    later = [ordered for ordered in clients.ordered if ordered.at > 200.0]
    assert len(later) > 20
    for ordered in later:
        length = ordered.due.expected - ordered.at
        arrives = ordered.at + ordered.steps * clients.seconds[ordered.client]
        assert 0.8 * length <= arrives - ordered.at <= length + 1e-6


def test_simulated_clients_of_different_speeds_arrive_together(tmp_path):
    (tmp_path / "devices.toml").write_text('speed = "uniform:3"\njitter = 0.05\n')
    sim = simulator(
        FedSEA(),
        clients=8,
        devices=str(tmp_path / "devices.toml"),
        stop=Stop(updates=160),
        work=Work(steps=40, epochs=None),
    )
    sim.run()
    rows = [row for row in sim.history.updates if "expected" in row][-80:]
    off = sorted(abs(row["time"] - row["expected"]) / (row["expected"] - row["began"]) for row in rows)
    assert len(rows) == 80
    assert off[len(off) // 2] < 0.15


def test_a_straggler_trains_in_full_and_counts_at_a_later_point():
    clients = clocked(1.0, 1.0, 60.0, full=10)
    clients.run(until=599.0)
    assert [(ordered.steps, ordered.due) for ordered in clients.ordered if ordered.client == 2] == [(10, None)]
    assert clients.strategy.model.version > 40
    with patch.object(FedSEA, "aggregate") as aggregate:
        clients.run(until=620.0)
    assert sum(one.client == 2 for call in aggregate.call_args_list for one in call.args[0]) == 1


def test_who_is_awaited_and_silent_delays_a_point_only_until_its_latest():
    clients = clocked(1.0, 1.0, 1.0, full=10, latest_factor=1.5)
    clients.run(until=25.0)
    point, version = clients.strategy.point, clients.strategy.model.version
    assert set(point.waiting) == {0, 1, 2}
    clients.silence(2)
    clients.run(until=point.latest)
    assert clients.now == point.latest == pytest.approx(35.0)
    assert clients.strategy.model.version == version + 1
    handed = len(clients.arrived)
    clients.run(until=100.0)
    assert len(clients.arrived) >= handed + 8


def test_a_point_for_which_nobody_came_changes_nothing_and_others_go_on():
    clients = clocked(1.0, 40.0, full=10)
    clients.run(until=55.0)
    version = clients.strategy.model.version
    clients.leave(0, 55.0)
    assert clients.strategy.model.version == version
    clients.run(until=500.0)
    assert clients.strategy.model.version == version + 1
    clients.run(until=900.0)
    assert clients.strategy.model.version == version + 2


def test_a_timer_of_a_point_that_is_over_does_nothing():
    strategy = fedsea(2)
    strategy.point = ArrivalGroup(3, 10.0, 12.0, {0: None})
    assert strategy.fired("2", 5.0) is None
    assert strategy.point is not None


def test_the_server_sets_a_timer_for_the_latest_time_of_a_point():
    strategy = fedsea(1, latest_factor=1.2)
    assert strategy._set_point(expected=60.0, now=10.0) == SetTimer(70.0, "1")


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from([0.1, 1.0, 1.3, 2.0, 7.0, 50.0]), min_size=1, max_size=6),
    st.sampled_from([0.1, 0.5, 1.0]),
    st.sampled_from([EVERYONE, Quota(count=2)]),
    st.lists(st.tuples(st.floats(0.5, 90.0), st.integers(0, 5), st.sampled_from(["leave", "join"])), max_size=12),
)
def test_every_update_counts_exactly_once_whoever_comes_and_goes(seconds, share, participation, happenings):
    aggregated, handed = [], []

    strategy = fedsea(len(seconds), share=share, participation=participation)
    told = strategy.updated
    object.__setattr__(strategy, "updated", lambda one, now: (handed.append(one), told(one, now))[1])
    with patch.object(FedSEA, "aggregate", lambda _, updates: aggregated.extend(updates)):
        clients, there, now = ScriptedClock(strategy, seconds), set(range(len(seconds))), 0.0
        for later, client, what in happenings:
            now += later
            clients.run(until=now)
            if what == "leave" and client in there:
                there.remove(client)
                if client in clients.training:
                    clients.leave(client, now)
                else:
                    clients._obey(strategy.left(client, now))
            elif what == "join" and client < len(seconds) and client not in there:
                there.add(client)
                clients.silent.discard(client)
                clients.now = now
                clients._obey(strategy.joined(client, now))
                clients._obey(strategy.ready(client, now))
        so_far = len(handed)
        clients.run(updates=so_far + 12)
    assert sorted(map(id, aggregated + strategy.gathered)) == sorted(map(id, handed))
    assert len(handed) == so_far + 12 * bool(there)  # nobody waits forever


def test_a_run_of_fedsea_can_be_saved():
    strategy = FedSEA()
    simulator(strategy, clients=5, devices="slow:0.4x5", stop=Stop(updates=20)).run()
    assert torch.isfinite(strategy.model.weights).all()
    assert digest(unpack(*pack(strategy.save_state()))) == digest(strategy.save_state())


def test_fedsea_says_that_it_is_reconstructed():
    assert FedSEA.reconstructed
    assert make_strategy("fedsea", {}).__doc__.startswith("Reconstructed")
