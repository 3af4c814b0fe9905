"""Robust mixing: what a method is told instead of an update that stands alone."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from polytempo.core.errors import UserError
from polytempo.core.state import digest, pack, unpack
from polytempo.serve.journal.replay import replay
from polytempo.sim.experiment import make_experiment
from polytempo.sim.records.evaluation import Stop
from polytempo.sim.run import run_experiment
from polytempo.strategies import make_strategy, strategies
from polytempo.strategies.parts.robust import KEPT, Mix, Robust, parse_robust, trimmed_mean
from polytempo.testing import begun, simulator, vector
from support.robust import hand_in, listener
from support.serving import hosted, restarted, some_events

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


@pytest.mark.parametrize("name", ["standalone", "pace", "fedamp", "pfedgraph-async", "cdfl", "fedsoft-async"])
def test_a_mix_is_refused_where_updates_of_several_clients_cannot_be_mixed_and_clipping_is_not(name):
    make_experiment(strategy=name, clip=2).check()
    with pytest.raises(UserError, match=r"a model of its own|moves several cluster models"):
        make_experiment(strategy=name, robust="median").check()


@pytest.mark.parametrize("name", list(strategies))
def test_where_nobody_shares_a_model_nothing_can_be_mixed(name):
    if strategies[name].needs_proxies:  # its models are those of the proxy sets
        assert strategies[name].unmixable
        return
    begins = begun(make_strategy(name, {}), vector(0, 0, 0))
    assert bool(strategies[name].unmixable) == ([begins.cluster_of(client) for client in range(3)] == [0, 1, 2])


# Mixing.


def mixing(recent=10, share=0.5, given=()):
    """A server whose clients have handed in once, with these values."""
    server = listener(mix=Mix(recent, share), clients=max(len(given), 1))
    for client, value in enumerate(given):
        hand_in(server, client, value, 0)
    return server


def test_a_client_that_had_no_time_to_train_moves_nothing_and_does_not_count():
    server = mixing(given=(4, 4, 2, 2))
    hand_in(server, 0, 0, 0)
    assert server.inner.told[-1].delta.tolist() == [0, 0]
    assert hand_in(server, 1, 4, 0) == [3, 0]


def test_an_update_becomes_the_median_of_the_newest_of_each_its_own_among_them():
    server = mixing(given=(9, 3))
    assert hand_in(server, 0, 1, 5) == [2, 2.5]
    server = mixing(given=(1, 3, -100, 5))
    assert hand_in(server, 0, 2, 0) == [2.5, 0]


def test_a_trimmed_mean_leaves_out_the_extremes():
    server = mixing(share=0.25, given=(9, 1, 2, 6))
    assert hand_in(server, 0, 1000, 0) == [4, 0]


@pytest.mark.parametrize(("count", "left"), [(1, 1), (2, 2), (3, 1), (4, 2), (5, 1), (10, 4)])
def test_at_least_the_middle_is_left(count, left):
    assert count - 2 * Mix(10, 0.3).trimmed(count) == left


def test_what_is_mixed_is_clipped_also_what_came_before_there_was_a_bound():
    server = listener(clip=1.0, mix=Mix(10, 0.5), clients=2)
    hand_in(server, 0, 1e6, 0)
    assert hand_in(server, 1, 3, 0) == [3, 0]


def test_a_mix_is_of_so_many_drawn_among_all():
    server = mixing(recent=3, given=range(1, 21))
    told = [hand_in(server, client, client + 1, 0)[0] for client in range(20)]
    assert len(set(told)) > 5  # always others
    assert all(2 <= value <= 19 for value in told)  # a median of three is never the least or the most


def test_what_is_drawn_is_a_matter_of_the_seed():
    def told(seed):
        server = mixing(recent=3, given=range(20))
        server.setting = replace(server.setting, seed=seed)
        return [hand_in(server, client, client, 0)[0] for client in range(20)]

    assert told(1) == told(1) != told(2)


def test_no_more_deltas_are_kept_than_that_and_not_those_of_the_fast():
    server = listener(mix=Mix(3, 0.5), clients=3 * KEPT)
    for client in (*range(3 * KEPT), *[5] * 100, *range(3 * KEPT)):
        hand_in(server, client, 1, 0)
    assert len(server.recent) == KEPT
    lots = {client: recent.lot for client, recent in server.recent.items()}
    again = listener(mix=Mix(3, 0.5), clients=3 * KEPT)
    for client in reversed(range(3 * KEPT)):
        hand_in(again, client, 1, 0)
    assert {client: recent.lot for client, recent in again.recent.items()} == lots


def test_a_fast_client_does_not_outvote_the_others():
    server = mixing(given=(100, 1, 2))
    for _ in range(10):
        assert hand_in(server, 0, 100, 0) in ([2, 0], [0, 0])


def test_between_two_moves_of_one_client_half_of_the_others_have_to_hand_in():
    server = mixing(given=(1, 1, 1, 1, 1))
    hand_in(server, 1, 1, 0)
    assert hand_in(server, 0, 1, 0) == [1, 0]
    assert [hand_in(server, 0, 1, 0) for _ in range(3)] == [[0, 0]] * 3
    hand_in(server, 1, 1, 0)
    assert hand_in(server, 0, 1, 0) == [0, 0]
    hand_in(server, 2, 1, 0)
    assert hand_in(server, 0, 1, 0) == [1, 0]


@pytest.mark.parametrize("method", ["fedavg", "fedasync"])
def test_where_few_of_many_train_at_once_nobody_who_is_picked_has_to_wait(method):
    """Once enough have handed in, which is nine; equally fast clients that are picked at random come again soon."""
    given = {"clients": 60, "participation": "k:6", "updates": 240, "partition": "iid", "devices": "homogeneous"}
    experiment = make_experiment(strategy=method, clip=3, robust="median:10", **given)
    finished = run_experiment(experiment)
    assert finished.result["held_back"] <= 24


def test_no_more_deltas_are_kept_after_a_merge_either():
    server = listener(mix=Mix(3, 0.5), clients=2 * KEPT)
    server.inner.branches = {client: client % 2 for client in range(2 * KEPT)}
    for client in range(2 * KEPT):
        hand_in(server, client, 1, 0)
    server.inner.branches = {}
    hand_in(server, 0, 1, 0)
    assert len(server.recent) == KEPT


def test_who_leaves_and_comes_again_does_not_begin_anew():
    server = mixing(given=(1, 1, 1, 1, 1))
    assert hand_in(server, 0, 1, 0) == [1, 0]
    server.left(0, 0.0)
    server.joined(0, 0.0)
    assert hand_in(server, 0, 1, 0) == [0, 0]


def test_only_clients_on_the_same_branch_are_mixed():
    server = listener(mix=Mix(5, 0.5), clients=3)
    server.inner.branches = {0: 0, 1: 0, 2: 7}
    for client, value in enumerate((1, 3, 100)):
        hand_in(server, client, value, 0)
    assert hand_in(server, 0, 1, 0) == [2, 0]
    assert hand_in(server, 2, 50, 0) == [50, 0]


def test_deltas_move_with_their_clients_when_a_branch_splits():
    server = mixing(given=(1, 100, 3, 100))
    server.inner.branches = {0: 1, 1: 2, 2: 1, 3: 2}
    assert hand_in(server, 0, 5, 0) == [4, 0]


def test_deltas_move_with_their_clients_when_branches_merge():
    server = listener(mix=Mix(5, 0.5), clients=4)
    server.inner.branches = {0: 1, 1: 2, 2: 1, 3: 2}
    for client, value in enumerate((1, 9, 5, 7)):
        hand_in(server, client, value, 0)
    server.inner.branches = {}
    assert hand_in(server, 0, 1, 0) == [6, 0]


def test_who_has_left_is_not_mixed_with():
    server = mixing(given=(1, 100, 3))
    server.left(1, 1.0)
    assert hand_in(server, 0, 1, 0) == [2, 0]


def test_methods_that_compare_clients_see_what_each_handed_in_itself():
    server = listener(clip=2.0, mix=Mix(5, 0.5), clients=4)
    for client in (0, 1, 2, 0, 1, 2):
        hand_in(server, client, 1, 0)
    hand_in(server, 3, 0, -10)
    assert server.inner.told[-1].delta.tolist() == [1, 0]
    assert server.inner.told[-1].own.delta.tolist() == [0, -2]  # clipped


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


# State.


@pytest.mark.parametrize("name", ["fedasync", "fedavg", "casa", "ifca-async"])
def test_a_run_that_was_saved_in_the_middle_ends_in_the_same_bits(name):
    def robust_run(stop):
        server = Robust(make_strategy(name, {}), 1.1, Mix(3, 0.5))
        return simulator(server, clients=4, devices="slow:0.4x5", stop=Stop(updates=stop))

    whole, first, second = robust_run(40), robust_run(13), robust_run(40)
    whole.run()
    first.run()
    text, tensors = pack(first.save_state() | {"_finished": False})
    second.load_state(unpack(text, tensors))
    second.run()
    assert digest(second.strategy.save_state()) == digest(whole.strategy.save_state())


def test_without_clip_and_mix_there_is_no_wrapper():
    assert not isinstance(make_experiment(strategy="fedasync").make(), Robust)
    assert isinstance(make_experiment(strategy="fedasync", clip=2).make(), Robust)
    assert isinstance(make_experiment(strategy="fedasync", robust="median").make(), Robust)


def test_a_served_journal_with_robust_mixing_replays_to_the_same_bits(tmp_path):
    with hosted(tmp_path, clip=1.5, robust="median:3") as service:
        some_events(service, updates=9)
        expected, same = service.digest(), service.settings
        assert len(service.host.service.strategy.recent) == 3
    assert replay(tmp_path / "journal").figures()["digest"] == expected
    assert restarted(tmp_path, same) == expected


def test_a_service_does_not_go_on_with_another_mix(tmp_path):
    with hosted(tmp_path, robust="median:3") as service:
        about = json.loads(json.dumps(service.settings.lasting()))
        other = service.settings.model_copy(update={"robust": "none"})
    assert about["robust"] == "median:3"
    with pytest.raises(UserError, match="robust is 'median:3' there, 'none' here"):
        restarted(tmp_path, other)
