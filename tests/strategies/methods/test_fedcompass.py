"""FedCompass: the paper's Figure 1 to the second, what each update counts, and its forms with momentum and normalised
averaging."""

from collections.abc import Sequence
from math import pi, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from polytempo import simulate
from polytempo.cli import main as cli
from polytempo.core.errors import UserError
from polytempo.core.orders import Due, Work
from polytempo.sim.records.evaluation import Stop
from polytempo.strategies import Setting
from polytempo.strategies.base.participation import parse_quota
from polytempo.strategies.methods.fedcompass import FedCompass, FedCompassM, FedCompassN
from polytempo.strategies.parts.staleness import Constant
from polytempo.testing import begun, simulator, vector
from polytempo.testing.clock import Ordered, towards_its_own
from polytempo_client.model.schema import Schema
from support.compass import CompassClock

FIGURE_1 = (6.0, 12.0, 15.0, 24.0, 30.0)
"""Seconds per step."""
FORMS = [FedCompass, FedCompassM, FedCompassN]


def figure_1(scale: float = 1.0, form: type[FedCompass] = FedCompass) -> CompassClock:
    strategy = begun(form(q_min=20, q_max=100), vector(1.0, -2.0, 0.5), 5)
    return CompassClock(strategy, [scale * seconds for seconds in FIGURE_1], samples=[10, 20, 30, 40, 50])


def clock(text: str) -> float:
    """``22:00`` in seconds."""
    minutes, seconds = text.split(":")
    return 60.0 * int(minutes) + int(seconds)


def ordered(at: str, client: int, steps: int, group: int, expected: str, latest: str) -> Ordered:
    return Ordered(clock(at), client, steps, Due(group, clock(expected), clock(latest)))


# Figure 1.


def test_figure_1_is_planned_as_in_the_paper():
    clients = figure_1()
    clients.run(until=clock("22:00"))
    assert clients.ordered == [
        *(Ordered(0.0, client, 20, None) for client in range(5)),
        ordered("2:00", 0, 100, 1, "12:00", "14:00"),
        ordered("4:00", 1, 40, 1, "12:00", "14:00"),
        ordered("5:00", 2, 28, 1, "12:00", "14:00"),
        ordered("8:00", 3, 35, 2, "22:00", "24:48"),
        ordered("10:00", 4, 24, 2, "22:00", "24:48"),
        ordered("12:00", 0, 100, 2, "22:00", "24:48"),
        ordered("12:00", 1, 50, 2, "22:00", "24:48"),
        ordered("12:00", 2, 40, 2, "22:00", "24:48"),
        ordered("22:00", 0, 100, 3, "32:00", "34:00"),
        ordered("22:00", 1, 50, 3, "32:00", "34:00"),
        ordered("22:00", 2, 40, 3, "32:00", "34:00"),
        ordered("22:00", 3, 25, 3, "32:00", "34:00"),
        ordered("22:00", 4, 20, 3, "32:00", "34:00"),
    ]
    assert clients.strategy.compass.speed == dict(enumerate(FIGURE_1))
    assert clients.groups == [[0, 1, 2, 3, 4]]


def test_figure_1_has_the_staleness_of_the_paper():
    clients = figure_1()
    clients.run(until=clock("22:00"))
    arrivals = [(arrived.at, arrived.client, arrived.staleness) for arrived in clients.arrived]
    times = map(clock, ("2:00", "4:00", "5:00", "8:00", "10:00"))
    assert arrivals[:5] == [(at, client, client) for client, at in enumerate(times)]
    assert arrivals[5:8] == [(clock("12:00"), client, 4 - client) for client in range(3)]
    assert arrivals[8:] == [(clock("22:00"), client, [0, 0, 0, 2, 1][client]) for client in range(5)]
    assert clients.strategy.model.version == 7


def test_figure_1_goes_on_with_one_group_for_ever():
    clients = figure_1()
    clients.run(until=clock("222:00"))
    rounds = [order for order in clients.ordered if order.at >= clock("22:00")]
    assert [(order.client, order.steps) for order in rounds] == [(0, 100), (1, 50), (2, 40), (3, 25), (4, 20)] * 21
    assert [arrived.staleness for arrived in clients.arrived[13:]] == [0] * 100


# Times are relative.


def plan(clients: CompassClock) -> dict[int, list[tuple[int, int | None]]]:
    """Steps and groups of each client; who of a group arrives first is a matter of rounding."""
    return {
        client: [(order.steps, order.group) for order in clients.ordered if order.client == client]
        for client in range(len(clients.seconds))
    }


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=50)
@given(scale=st.floats(1e-3, 1e4))
@example(scale=1 / 3)
@example(scale=0.1)
def test_rescaling_all_times_changes_nothing_in_figure_1(form, scale):
    one, other = figure_1(1.0, form), figure_1(scale, form)
    for clients in (one, other):
        clients.run(updates=43)
    assert plan(other) == plan(one)
    assert torch.equal(other.strategy.model.weights, one.strategy.model.weights)


def run_at(seconds: Sequence[float], updates: int) -> CompassClock:
    clients = CompassClock(begun(FedCompass(q_min=20, q_max=100), vector(1.0, -2.0), len(seconds)), seconds)
    clients.run(updates=updates)
    return clients


@settings(max_examples=50)
@given(st.lists(st.floats(1, 20), min_size=1, max_size=6), st.integers(-20, 20))
def test_rescaling_all_times_changes_nothing_where_they_stay_exact(seconds, power):
    one, other = run_at(seconds, 60), run_at([one * 2.0**power for one in seconds], 60)
    assert plan(other) == plan(one)
    assert torch.equal(other.strategy.model.weights, one.strategy.model.weights)


@settings(max_examples=50)
@given(st.integers(0, 2**32), st.integers(1, 8), st.floats(1e-3, 1e3))
def test_rescaling_all_times_changes_nothing_where_no_two_groups_arrive_at_the_same_moment(seed, clients, scale):
    seconds = np.random.default_rng(seed).uniform(1, 20, clients)
    one, other = run_at(seconds.tolist(), 60), run_at((scale * seconds).tolist(), 60)
    assert plan(other) == plan(one)
    assert torch.equal(other.strategy.model.weights, one.strategy.model.weights)


# What an update counts.


def jumps(*by: float) -> Any:
    """Training that moves the model by a fixed length, one for each client."""
    return lambda client, steps, start: start + by[client]


def plain(
    form: type[FedCompass], fewest: int, most: int, seconds: Sequence[float], *by: float, **given: Any
) -> CompassClock:
    """Clients with equally many samples; an update counts ``p_i`` whatever its staleness."""
    parameters = {"server_lr": 1.0, "staleness": Constant()} | given
    strategy = begun(form(q_min=fewest, q_max=most, **parameters), vector(0.0), len(seconds))
    return CompassClock(strategy, seconds, trained=jumps(*by))


def model_after(clients: CompassClock, seconds: float) -> float:
    clients.run(until=seconds)
    return clients.strategy.model.weights.item()


def test_the_weight_of_an_update_is_by_hand_what_the_paper_says():
    clients = CompassClock(
        begun(FedCompass(q_min=1, q_max=2), vector(0.0), 3),
        [1.0, 2.0, 3.0],
        samples=[30, 10, 20],
        trained=jumps(1.0, 10.0, 100.0),
    )
    # Who has not handed in counts as having as many samples as the others have on average.
    first = 0.9 * 30 / 90 * 1
    assert model_after(clients, 1.0) == pytest.approx(first)
    second = first + 0.9 * 2**-0.5 * 10 / 60 * 10
    assert model_after(clients, 2.0) == pytest.approx(second)
    # At 3 s the first arrives again, alone in its group (two steps since 1 s), and then the third for the first time.
    third = second + 0.9 * 2**-0.5 * (30 / 60) * 1
    fourth = third + 0.9 * 4**-0.5 * 20 / 60 * 100
    assert model_after(clients, 3.0) == pytest.approx(fourth)


def test_the_staleness_that_counts_is_that_at_the_arrival_not_at_the_aggregation():
    clients = plain(FedCompass, 1, 4, (1.0, 2.0, 4.5), 0.0, 12.0, 0.0, staleness="polynomial:1")
    assert model_after(clients, 2.0) == pytest.approx(12 / 3 / 2)
    assert model_after(clients, 4.5) == pytest.approx(2)  # the second arrived at 4 s, and the third made a version
    assert model_after(clients, 5.0) == pytest.approx(2 + 12 / 3)


def test_who_has_left_does_not_count_in_the_shares_any_more():
    strategy = begun(FedCompass(q_min=1, q_max=2), vector(0.0), 2)
    clients = CompassClock(strategy, [1.0, 1.5], samples=[10, 30])
    clients.run(until=1.5)
    importance = clients.strategy.importance
    assert (importance.of(0, 2), importance.of(1, 2)) == (0.25, 0.75)
    clients.leave(1, 1.6)
    assert importance.of(0, 1) == 1


def test_momentum_is_on_the_steps_of_groups_and_not_on_first_arrivals():
    clients = plain(FedCompassM, 1, 2, (1.0, 2.0), 1.0, 10.0, server_momentum=0.5)
    assert model_after(clients, 2.0) == pytest.approx(0.5 + 5)  # the first arrivals
    assert clients.strategy.velocity.item() == 0
    assert model_after(clients, 3.0) == pytest.approx(5.5 + 0.5)  # the first alone
    assert clients.groups == [[0, 1]]
    assert model_after(clients, 4.0) == pytest.approx(6 + 0.5 * 0.5 + 5.5)  # both


def test_normalised_averaging_divides_by_each_ones_steps_and_multiplies_by_their_mean():
    plainly, normalised = (plain(form, 1, 4, (1.0, 2.0), 1.0, 10.0) for form in (FedCompass, FedCompassN))
    for clients in (plainly, normalised):
        assert model_after(clients, 2.0) == pytest.approx(5.5)
        assert [order.steps for order in clients.ordered[2:]] == [4, 1]
    assert model_after(plainly, 5.0) == pytest.approx(5.5 + 0.5 * 1 + 0.5 * 10)
    assert model_after(normalised, 5.0) == pytest.approx(5.5 + 2.5 * (0.5 * 1 / 4 + 0.5 * 10 / 1))


def test_a_late_update_counts_with_the_group_also_where_it_is_normalised_or_has_momentum():
    for form in FORMS:
        clients = plain(form, 1, 4, (1.0, 1.0), 1.0, 1.0)
        clients.run(until=1.0)
        clients.silence(1)
        model_after(clients, 6.0)
        before = clients.strategy.model.weights.item()
        clients.hand_in(1, 8.0)
        assert clients.strategy.model.weights.item() == before
        momentum = 0.9 * clients.strategy.velocity.item() if form is FedCompassM else 0.0
        assert model_after(clients, 11.0) == pytest.approx(before + 0.5 + 0.5 + momentum)
        assert clients.strategy.late == []


def one_at_a_time(
    initial: Tensor, seconds: Sequence[float], samples: Sequence[int], steps: int, updates: int
) -> Tensor:
    """Every update on its own: ``w <- w + 0.9 (1 + tau)^-0.5 p_i delta_i``"""
    model = initial
    starts = dict.fromkeys(range(len(seconds)), (initial, 0))
    due = {client: steps * one for client, one in enumerate(seconds)}
    known: dict[int, int] = {}
    for version in range(updates):
        client = min(due, key=due.__getitem__)
        start, begun_at = starts[client]
        known[client] = samples[client]
        share = samples[client] / (sum(known.values()) / len(known) * len(seconds))
        delta = towards_its_own(client, steps, start) - start
        model = model + 0.9 * (1 + version - begun_at) ** -0.5 * share * delta
        starts[client] = (model, version + 1)
        due[client] += steps * seconds[client]
    return model


def test_where_no_two_clients_can_share_a_group_every_update_counts_on_its_own():
    # A client joins a group only if it can do exactly as many steps as everybody until the other's arrival.
    seconds, samples, steps = (1.0, sqrt(2), sqrt(7), pi), (10, 40, 20, 30), 10_000
    initial = vector(0.3, -1.0, 2.0)
    strategy = begun(FedCompass(q_min=steps, q_max=steps), initial, 4)
    clients = CompassClock(strategy, seconds, samples)
    for _ in range(100):
        clients.run(updates=len(clients.arrived) + 1)
        assert all(len(group) == 1 for group in clients.groups)
    assert strategy.model.version == 100
    replayed = one_at_a_time(initial, seconds, samples, steps, 100)
    assert torch.allclose(strategy.model.weights, replayed, rtol=0, atol=1e-6)


# Parameters.


def begun_with(work: Work, **given: Any) -> tuple[int, int]:
    """Q_min and Q_max in a run with this local work."""
    strategy = FedCompass(**given)
    strategy.begin(Setting(vector(0.0), Schema(("w",), ((1,),), 1), work))
    return strategy.compass.fewest, strategy.compass.most


def test_the_most_steps_are_the_runs_and_the_fewest_a_fifth_of_them_unless_said_otherwise():
    assert begun_with(Work()) == (20, 100)
    assert begun_with(Work(steps=200)) == (40, 200)
    assert begun_with(Work(steps=3)) == (1, 3)
    assert begun_with(Work(steps=200), q_max=50) == (10, 50)
    assert begun_with(Work(steps=200), q_min=200) == (200, 200)
    assert begun_with(Work(), q_min=7, q_max=8) == (7, 8)


def test_fewer_most_steps_than_fewest_are_refused_with_both_numbers():
    with pytest.raises(UserError, match=r"q_min is 50, more than q_max \(20\)"):
        begun_with(Work(), q_min=50, q_max=20)
    with pytest.raises(UserError, match=r"q_min is 30, more than q_max \(10\)"):
        begun_with(Work(steps=10), q_min=30)


def test_the_command_line_refuses_them_without_a_traceback(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["polytempo", "run", "fedcompass", "--set", "q_min=50", "--set", "q_max=20"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    captured = capsys.readouterr()
    assert end.value.code == 2
    assert "q_min is 50" in captured.err
    assert "Traceback" not in captured.err + captured.out


# In the simulator.

WORLDS = {
    "think": 'speed = "uniform:5"\nthink = 20.0\n',
    "availability": 'speed = "normal:0.3"\n[availability]\non = 40.0\noff = 30.0\n',
    "dropout": 'speed = "exponential"\n[dropout]\nprobability = 0.3\naway = 25.0\n',
    "late": 'speed = "uniform:3"\n[[late]]\nclients = 0.6\nby = 200.0\n',
    "everything": 'speed = "uniform:8"\nthink = 3.0\n[availability]\non = 60.0\noff = 20.0\n'
    "[network]\nup = 50.0\ndown = 90.0\nlatency = 0.25\n[dropout]\nprobability = 0.2\naway = 9.0\n"
    "[[late]]\nclients = 0.4\nby = 90.0\n[[speed_change]]\nat = 100.0\nfactor = 5.0\nclients = 0.4\n",
}


@pytest.mark.parametrize("quota", ["all", "k:2", "share:0.5:round-robin"])
@pytest.mark.parametrize("world", WORLDS)
def test_it_goes_on_whatever_the_devices_do_and_nobody_trains_beyond_the_quota(world, quota, tmp_path):
    (tmp_path / "devices.toml").write_text(WORLDS[world])
    participation = parse_quota(quota)
    run = simulator(
        FedCompass(q_min=2, q_max=10), 5, str(tmp_path / "devices.toml"), Stop(updates=150), participation=participation
    )
    most = 0

    def look() -> None:
        nonlocal most
        most = max(most, len(run._trainings))

    run.run(look)
    assert run.updates == 150
    assert most <= participation.of(5)
    assert {row["client"] for row in run.history.updates} == set(range(5))


@pytest.mark.parametrize("form", FORMS)
def test_it_learns(form):
    work = Work(steps=20, epochs=None, batch_size=4, lr=0.1)
    run = simulator(form(), 5, "slow:0.4x5", Stop(updates=60), work)
    run.run()
    assert run.history.evaluations[-1]["accuracy"] > 0.8 > run.history.evaluations[0]["accuracy"]


def test_the_steps_that_were_used_stand_in_the_runs_configuration():
    run = simulate("fedcompass", clients=4, steps=30, updates=4)
    assert {name: run.config["resolved"][name] for name in ("q_min", "q_max")} == {"q_min": 6, "q_max": 30}


def test_a_method_that_does_not_say_how_to_aggregate_is_refused_in_plain_words(tmp_path):
    file = tmp_path / "mine.py"
    base = "from polytempo.strategies.parts.arrival_groups import ArrivalGroups"
    file.write_text(f"{base}\n\n\nclass Mine(ArrivalGroups):\n    pass\n")
    with pytest.raises(UserError, match="has to say aggregate, weight"):
        simulate(f"{file}:Mine", clients=4)
