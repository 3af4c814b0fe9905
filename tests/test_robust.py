"""Clipping and robust mixing: what a method is told instead of an update that leads too far, or alone."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from building import begun, simulator, update, vector
from polytempo.core.errors import UserError
from polytempo.core.state import digest, pack, unpack
from polytempo.serve.replay import replay
from polytempo.sim.evaluation import Stop
from polytempo.sim.experiment import make_experiment
from polytempo.sim.run import run_experiment
from polytempo.strategies import Strategy, make_strategy, strategies
from polytempo.strategies.parts.robust import HANDFUL, NORMS, Mix, Screen, parse_robust, trimmed_mean
from serving import hosted, restarted, some_events

HERE = vector(0, 0)


class Listener(Strategy):
    """Keeps what it is told; clients are on the branches that it says."""

    def setup(self):
        self.told = []
        self.branches = {}

    def updated(self, update, now):
        self.told.append(update)

    def cluster_of(self, client):
        return self.branches.get(client, 0)


def listener(clip=None, mix=None, clients=20):
    made = begun(Listener(), HERE, clients)
    made.screen = Screen(clip, mix)
    return made


def hand_in(strategy, client, *delta):
    """The delta that the strategy is told."""
    strategy.receive(update(client, 0, HERE, vector(*delta)), 0.0)
    return strategy.told[-1].delta.tolist()


# Settings.


def test_robust_mixes_are_read_with_their_defaults():
    assert parse_robust("none") is None
    assert parse_robust("median") == Mix(10, 0.5)
    assert parse_robust("median:15") == Mix(15, 0.5)
    assert parse_robust("trimmed") == Mix(10, 0.3)
    assert parse_robust("trimmed:20:0.1") == Mix(20, 0.1)


@pytest.mark.parametrize("bad", ["mean", "", "median:2", "median:x", "median:5:0.1", "trimmed:5:0.6", "trimmed:5:nan"])
def test_a_mix_that_is_not_understood_is_refused(bad):
    with pytest.raises(UserError, match="Expected none, median:K or trimmed:K:SHARE"):
        make_experiment(strategy="fedasync", robust=bad).check()


@pytest.mark.parametrize("bad", [0, -1, "inf"])
def test_a_clip_that_is_no_positive_number_is_refused(bad):
    with pytest.raises(UserError, match="clip"):
        make_experiment(strategy="fedasync", clip=bad)


@pytest.mark.parametrize("name", ["standalone", "pace", "fedamp", "pfedgraph-async"])
def test_a_mix_is_refused_where_every_client_has_a_model_of_its_own_and_clipping_is_not(name):
    make_experiment(strategy=name, clip=2).check()
    with pytest.raises(UserError, match="a model of its own"):
        make_experiment(strategy=name, robust="median").check()


@pytest.mark.parametrize("name", list(strategies))
def test_who_is_alone_is_said_rightly(name):
    if strategies[name].needs_proxies:  # its models are those of the proxy sets
        assert not strategies[name].alone
        return
    begins = begun(make_strategy(name, {}), vector(0, 0, 0))
    assert strategies[name].alone == ([begins.cluster_of(client) for client in range(3)] == [0, 1, 2])


# Clipping.


def test_an_update_that_leads_too_far_is_scaled_down_to_the_bound():
    server = listener(clip=2.0, clients=4)
    for client, length in enumerate((1, 3, 2)):
        hand_in(server, client, 0, length)
    assert hand_in(server, 3, 30, 40) == pytest.approx([2.4, 3.2])  # of 1, 2, 3 and 50 the lower median is 2


def test_an_update_within_the_bound_is_handed_on_as_it_is():
    server = listener(clip=2.0, clients=2)
    hand_in(server, 0, 3, 4)
    handed = update(1, 0, HERE, vector(6, 8))
    server.receive(handed, 0.0)
    assert server.told[-1] is handed


def test_first_updates_only_say_how_far_updates_lead_and_of_two_the_smaller_sets_the_bound():
    server = listener(clip=1.0, clients=2)
    assert hand_in(server, 0, 0, 100) == [0, 0]
    assert server.told[-1].own_delta.tolist() == [0, 100]
    assert hand_in(server, 1, 0, 1) == [0, 1]
    assert hand_in(server, 0, 0, 100) == [0, 1]


def test_of_many_clients_the_first_update_of_the_first_few_moves_nothing():
    server = listener(clip=1.0, clients=20)
    told = [hand_in(server, client, 0, 1) for client in range(20)]
    assert told == [[0, 0]] * (HANDFUL - 1) + [[0, 1]] * (21 - HANDFUL)


def test_a_client_that_is_there_alone_is_not_held_up():
    server = listener(clip=1.0, clients=1)
    assert hand_in(server, 0, 0, 100) == [0, 100]


def test_a_client_whose_first_update_only_counted_is_heard_with_its_second():
    server = listener(clip=1.0, clients=20)
    assert [hand_in(server, client, 0, 1) for client in (0, 1, 0)] == [[0, 0], [0, 0], [0, 1]]


def test_a_client_that_is_heard_twice_before_the_others_does_not_set_its_own_bound():
    server = listener(clip=1.0, clients=20)
    assert [hand_in(server, 0, 0, 1e6) for _ in range(3)] == [[0, 0]] * 3
    hand_in(server, 1, 0, 1)
    assert hand_in(server, 0, 0, 1e6) == [0, 1]


def test_a_fast_client_counts_once_in_the_median_of_norms():
    server = listener(clip=1.0, clients=4)
    for client in (1, 2, 3):
        hand_in(server, client, 0, 1)
    for _ in range(50):
        assert hand_in(server, 0, 0, 100) == [0, 1]


def test_a_client_that_had_no_time_to_train_does_not_lower_the_bound():
    server = listener(clip=1.0, clients=2)
    for client in (0, 1):
        hand_in(server, client, 0, 3)
    assert hand_in(server, 0, 0, 0) == [0, 0]
    assert hand_in(server, 1, 0, 3) == [0, 3]


def test_norms_are_kept_of_the_clients_heard_last():
    server = listener(clip=1.0, clients=NORMS + 1)
    for client in range(NORMS + 1):
        hand_in(server, client, 0, 1)
    assert list(server.screen.norms) == list(range(1, NORMS + 1))


# Mixing.


def test_a_client_that_had_no_time_to_train_moves_nothing_and_does_not_count():
    server = listener(mix=Mix(5, 0.5))
    hand_in(server, 0, 4, 0)
    assert hand_in(server, 1, 0, 0) == [0, 0]
    assert hand_in(server, 2, 2, 0) == [3, 0]


def test_an_update_becomes_the_median_of_recent_ones_its_own_among_them():
    server = listener(mix=Mix(10, 0.5))
    assert hand_in(server, 0, 1, 5) == [1, 5]
    assert hand_in(server, 1, 3, 1) == [2, 3]
    assert hand_in(server, 2, -100, 2) == [1, 2]


def test_a_trimmed_mean_leaves_out_the_extremes():
    server = listener(mix=Mix(10, 0.25))
    for client, value in enumerate((1, 2, 6)):
        hand_in(server, client, value, 0)
    assert hand_in(server, 3, 1000, 0) == [4, 0]


@pytest.mark.parametrize(("count", "left"), [(1, 1), (2, 2), (3, 1), (4, 2), (5, 1), (10, 4)])
def test_at_least_the_middle_is_left(count, left):
    assert count - 2 * Mix(10, 0.3).trimmed(count) == left


def test_only_so_many_recent_ones_count_and_no_more_are_kept():
    server = listener(mix=Mix(3, 0.5))
    for client, value in enumerate((100, 100, 1, 2, 3)):
        told = hand_in(server, client, value, 0)
    assert told == [2, 0]
    assert list(server.screen.recent) == [2, 3, 4]


def test_a_fast_client_does_not_outvote_the_others():
    server = listener(mix=Mix(5, 0.5))
    hand_in(server, 1, 1, 0)
    hand_in(server, 2, 2, 0)
    for _ in range(10):
        assert hand_in(server, 0, 100, 0) == [2, 0]


def test_only_clients_on_the_same_branch_are_mixed():
    server = listener(mix=Mix(5, 0.5))
    server.branches = {0: 0, 1: 0, 2: 7}
    hand_in(server, 0, 1, 0)
    assert hand_in(server, 2, 100, 0) == [100, 0]
    assert hand_in(server, 1, 3, 0) == [2, 0]


def test_deltas_move_with_their_clients_when_a_branch_splits():
    server = listener(mix=Mix(5, 0.5))
    for client, value in enumerate((1, 100, 3)):
        hand_in(server, client, value, 0)
    server.branches = {0: 1, 1: 2, 2: 1, 3: 1}
    assert hand_in(server, 3, 5, 0) == [3, 0]


def test_a_client_that_chose_another_branch_is_mixed_with_those_there():
    server = begun(make_strategy("ifca", {"k": 2}), HERE, clients=3)
    server.screen, told = Screen(None, Mix(5, 0.5)), []
    server.updated = lambda one, now: told.append(one.delta.tolist())
    for client, (chosen, value) in enumerate(((0, 1), (1, 100), (0, 3))):
        server.receive(replace(update(client, 0, HERE, vector(value, 0)), chosen=chosen), 0.0)
    assert told == [[1, 0], [100, 0], [2, 0]]


def test_who_has_left_is_not_mixed_with():
    server = listener(mix=Mix(5, 0.5))
    hand_in(server, 0, 100, 0)
    server.left(0, 1.0)
    assert hand_in(server, 1, 1, 0) == [1, 0]


def test_methods_that_compare_clients_see_what_each_handed_in_itself():
    server = listener(clip=2.0, mix=Mix(5, 0.5), clients=4)
    for client in (0, 1, 2, 0, 1, 2):
        hand_in(server, client, 1, 0)
    hand_in(server, 3, 0, -10)
    assert server.told[-1].delta.tolist() == [1, 0]
    assert server.told[-1].own_delta.tolist() == [0, -2]  # clipped


def test_casa_tells_groups_apart_although_their_updates_are_mixed():
    given = {"strategy": "casa", "partition": "groups", "clients": 12, "updates": 480}
    result = run_experiment(make_experiment(**given, clip=3, robust="median:5")).result
    assert result["purity"] == 1.0
    assert result["clusters"] >= 4


# What holds whatever comes.

numbers = st.floats(-1e6, 1e6, width=32)


@given(st.data())
def test_with_fewer_attackers_than_half_the_median_lies_among_the_honest(data):
    honest = data.draw(st.integers(2, 8))
    evil = data.draw(st.integers(0, honest - 1))
    rows = data.draw(arrays.arrays(np.float32, (honest, 3), elements=numbers))
    bad = data.draw(arrays.arrays(np.float32, (evil, 3), elements=st.floats(-(2.0**100), 2.0**100, width=32)))
    order = data.draw(st.permutations(range(honest + evil)))
    vectors = [torch.from_numpy(np.concatenate([rows, bad])[place]) for place in order]
    mean = trimmed_mean(vectors, Mix(16, 0.5).trimmed(len(vectors))).numpy()
    assert (rows.min(0) <= mean).all()
    assert (mean <= rows.max(0)).all()


@given(arrays.arrays(np.float32, st.tuples(st.integers(1, 12), st.integers(1, 40)), elements=numbers))
def test_the_median_is_that_of_numpy(rows):
    mean = trimmed_mean([torch.from_numpy(row) for row in rows], (len(rows) - 1) // 2)
    assert np.allclose(mean.numpy(), np.median(rows, axis=0), rtol=1e-6)


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 1e4, width=32)), min_size=1, max_size=30))
def test_no_update_leads_further_than_the_bound(handed):
    server, newest = listener(clip=1.5, clients=3), {}
    for client, length in handed:
        told = hand_in(server, client, 0, length)
        newest |= {client: length} if length else {}
        usual = sorted(newest.values())[(len(newest) - 1) // 2] if newest else 0.0
        assert 0 <= told[1] <= 1.5 * usual * (1 + 1e-6)


# State.


@pytest.mark.parametrize("name", ["fedasync", "fedavg", "casa", "ifca-async"])
def test_a_run_that_was_saved_in_the_middle_ends_in_the_same_bits(name):
    def screened(stop):
        sim = simulator(make_strategy(name, {}), clients=4, devices="slow:0.4x5", stop=Stop(updates=stop))
        sim.strategy.screen = Screen(1.1, Mix(3, 0.5))
        return sim

    whole, first, second = screened(40), screened(13), screened(40)
    whole.run()
    first.run()
    text, tensors = pack(first.save_state() | {"_finished": False})
    second.load_state(unpack(text, tensors))
    second.run()
    assert digest(second.strategy.save_state()) == digest(whole.strategy.save_state())


def test_without_clip_and_mix_nothing_is_kept():
    assert "screen" not in begun(make_strategy("fedasync", {}), HERE).save_state()


def test_a_served_journal_with_robust_mixing_replays_to_the_same_bits(tmp_path):
    with hosted(tmp_path, clip=1.5, robust="median:3") as service:
        some_events(service, updates=9)
        expected, same = service.digest(), service.settings
        screen = service.host.service.strategy.screen
        assert len(screen.recent) == 3
    assert replay(tmp_path / "journal").figures()["digest"] == expected
    assert restarted(tmp_path, same) == expected


def test_a_service_does_not_go_on_with_another_mix(tmp_path):
    with hosted(tmp_path, robust="median:3") as service:
        about = json.loads(json.dumps(service.settings.lasting()))
        other = service.settings.model_copy(update={"robust": "none"})
    assert about["robust"] == "median:3"
    with pytest.raises(UserError, match="robust is 'median:3' there, 'none' here"):
        restarted(tmp_path, other)
