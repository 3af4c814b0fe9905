"""Clipping and robust mixing: what a method is told instead of an update that leads too far, or alone."""

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
from polytempo.strategies import Strategy, make_strategy, strategies
from polytempo.strategies.parts.robust import HANDFUL, KEPT, Mix, Robust, needed, parse_robust, trimmed_mean
from polytempo.testing import begun, simulator, update, vector
from support.serving import hosted, restarted, some_events

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
    return begun(Robust(Listener(), clip, mix), HERE, clients)


def robust(name, clip=None, mix=None, clients=3, **parameters):
    """A method with clipping and robust mixing around it, its clients joined."""
    return begun(Robust(make_strategy(name, parameters), clip, mix), HERE, clients)


def hand_in(strategy, client, *delta):
    """The delta that the strategy is told."""
    strategy.updated(update(client, 0, HERE, vector(*delta)), 0.0)
    return strategy.inner.told[-1].delta.tolist()


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
    server.updated(handed, 0.0)
    assert server.inner.told[-1] is handed


def test_of_two_clients_the_smaller_sets_the_bound():
    server = listener(clip=1.0, clients=2)
    assert hand_in(server, 0, 0, 100) == [0, 0]
    assert server.inner.told[-1].own.delta.tolist() == [0, 100]
    assert hand_in(server, 1, 0, 1) == [0, 1]
    assert hand_in(server, 0, 0, 100) == [0, 1]


@pytest.mark.parametrize(
    ("members", "at_once", "count"),
    [(1, 1, 1), (2, 2, 2), (3, 3, 2), (5, 5, 3), (20, 20, 11), (1000, 1000, 501), (1000, 10, HANDFUL), (6, 2, 4)],
)
def test_nothing_moves_before_most_of_those_who_train_at_once_have_handed_in_or_a_handful(members, at_once, count):
    assert needed(members, at_once) == count


@pytest.mark.parametrize(("clip", "mix"), [(1.0, None), (None, Mix(10, 0.5)), (1.0, Mix(10, 0.5))])
def test_fast_attackers_who_are_a_fifth_are_not_measured_by_themselves(clip, mix):
    """Whoever attacks need not train, and hands in often before the first honest client does."""
    server = listener(clip, mix, clients=20)
    for turn in range(40):
        assert hand_in(server, turn % 4, 0, -1e6) == [0, 0]
    for client in range(4, 10):
        assert hand_in(server, client, 0, 1) == [0, 0]
    assert hand_in(server, 10, 0, 1) == [0, 1]
    assert abs(hand_in(server, 0, 0, -1e6)[1]) <= 1


def test_an_update_that_is_held_back_leaves_the_model_as_it_is_though_its_start_is_old():
    server, told = robust("fedavg", clip=1.0, clients=2), []
    server.inner.model.step(vector(5, 5))
    server.inner.updated = lambda one, now: told.append(one)
    server.updated(update(0, 0, HERE, vector(0, 1)), 0.0)
    assert told[0].weights.tolist() == told[0].start.tolist() == [5, 5]
    assert (told[0].samples, told[0].weight) == (1, 0)
    assert told[0].own.delta.tolist() == [0, 1]


def test_where_nobody_waits_for_an_update_one_that_is_held_back_makes_no_version():
    server = robust("fedasync", clip=1.0, clients=2)
    server.updated(update(0, 0, HERE, vector(0, 1)), 0.0)
    assert server.held_back == 1
    assert server.inner.model.version == 0


def test_a_client_that_is_there_alone_is_not_held_up():
    server = listener(clip=1.0, clients=1)
    assert hand_in(server, 0, 0, 100) == [0, 100]


def test_a_fast_client_counts_once_in_the_median_of_norms():
    server = listener(clip=1.0, clients=4)
    for client in (1, 2, 3):
        hand_in(server, client, 0, 1)
    for _ in range(50):
        assert hand_in(server, 0, 0, 100) == [0, 1]


@pytest.mark.parametrize("name", ["fedasync", "fedbuff", "ca2fl", "casa-c"])
def test_updates_that_lead_nowhere_undo_nothing_however_many_come(name):
    """Whoever hands its start back would mix an old model in, or fill a buffer with nothing."""

    def trained(zeros):
        server = robust(name, 2.0, Mix(5, 0.5), clients=5)
        for turn in range(40):
            for client in range(4):
                list(server.updated(update(client, 0, HERE, vector(1 + turn / 10, client / 10)), 0.0) or ())
            for _ in range(zeros):
                list(server.updated(update(4, 0, HERE, HERE), 0.0) or ())
        return [server.model_for(client).tolist() for client in range(4)]

    assert trained(zeros=10) == trained(zeros=0)


def test_a_client_that_had_no_time_to_train_does_not_lower_the_bound():
    server = listener(clip=1.0, clients=2)
    for client in (0, 1):
        hand_in(server, client, 0, 3)
    assert hand_in(server, 0, 0, 0) == [0, 0]
    assert hand_in(server, 1, 0, 3) == [0, 3]


def test_who_has_left_has_no_say_in_the_bound():
    server = listener(clip=1.0, clients=5)
    for client, length in enumerate((1, 100, 100, 1)):
        hand_in(server, client, 0, length)
    server.left(0, 1.0)
    server.left(3, 1.0)
    assert hand_in(server, 4, 0, 50) == [0, 50]


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


def test_a_client_that_chose_another_branch_is_mixed_with_those_there():
    server, told = robust("ifca-async", mix=Mix(5, 0.5), k=2), []
    server.inner.updated = lambda one, now: told.append(one.delta.tolist())
    for client, (chosen, value) in [*enumerate(((0, 1), (1, 100), (0, 3))), (1, (1, 100))]:
        server.updated(replace(update(client, 0, HERE, vector(value, 0)), chosen=chosen), 0.0)
    assert told == [[100, 0], [2, 0], [100, 0]]


def two_clusters():
    """EchoPFL, in front of which updates are mixed, with a cluster to the right and one above."""
    server = robust("echopfl", mix=Mix(5, 0.5), clients=6, refine_every=0)
    right, above = vector(4, 0), vector(0, 4)
    for _ in range(2):
        for client in range(5):
            list(server.updated(update(client, 0, HERE, right if client % 2 else above), 0.0) or ())
    assert len({server.cluster_of(client) for client in range(5)}) == 2
    return server


def test_echopfl_mixes_an_update_with_those_of_the_cluster_that_it_joins():
    server = two_clusters()
    joins = server.cluster_of(1)
    list(server.updated(update(5, 0, HERE, vector(3, 0.5)), 0.0) or ())
    assert server.cluster_of(5) == joins
    model = server.model_for(5)
    assert model[0] > 3
    assert model[1] < 0.5


def test_echopfl_founds_its_clusters_with_what_clients_handed_in():
    server = robust("echopfl", 2.0, Mix(5, 0.5), refine_every=0)
    for client, model in ((0, vector(4, 0)), (1, vector(0, 4)), (2, vector(4, 1)), (0, vector(4, 0))):
        list(server.updated(update(client, 0, HERE, model), 0.0) or ())
    assert sorted(branch.weights.tolist() for branch in server.inner.clusters.branches.values())[0] == [0, 4]
    assert server.inner.founded == 2


def test_echopfl_places_whom_it_observes_and_sends_nothing_to_the_idle():
    server = two_clusters()
    server.inner.training[3] = (server.cluster_of(3),)
    model = server.model_for(3).clone()
    list(server.updated(update(3, 0, HERE, vector(0, 9)), 0.0) or ())
    list(server.updated(update(3, 0, HERE, vector(0, 9)), 0.0) or ())  # out of turn
    assert server.held_back > 0
    assert 3 not in server.inner.training
    assert server.cluster_of(3) == server.cluster_of(0)
    assert model is not None


def test_casa_compares_whom_it_observes():
    server = robust("casa", clip=2.0, clients=4)
    for client in (0, 1):
        server.updated(update(client, 0, HERE, vector(1, client)), 0.0)
    assert server.model_for(0).tolist() == [0, 0]
    assert server.similarity()[1, 0] == pytest.approx(0.5**0.5)
    assert (server.inner.began[:2] == -1).all()


def test_fedat_makes_a_tiers_model_of_those_that_were_not_held_back():
    server = robust("fedat", mix=Mix(3, 0.5), clients=2)
    for client in (0, 1):
        list(server.ready(client, 0.0) or ())
    for client in (0, 1):
        list(server.updated(update(client, 0, HERE, vector(2, 2), samples=7), 1.0) or ())
    assert server.model_for(0).tolist() == [2, 2]  # the first was held back
    assert server.inner.samples == {0: 1, 1: 7}  # nor do its samples count when tiers are mixed


def test_casa_mixes_a_newcomer_with_those_of_the_cluster_that_it_is_put_into():
    server = robust("casa", mix=Mix(5, 0.5), clients=7)
    server.inner.clusters.dismiss(6)
    server.inner.clusters.split(0, [[0, 1], [2, 3, 4, 5]], 0.0, {})
    for client in (0, 1, 2, 3, 0, 1):
        server.updated(update(client, 0, HERE, vector(4, 0) if client < 2 else vector(0, 4)), 0.0)
    newcomer = update(6, 0, HERE, vector(3, 1))
    assert server.branch_of(newcomer) == server.cluster_of(0) != server.cluster_of(2)


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


lengths = st.floats(0, 1e4, width=32, allow_subnormal=False)


@given(st.lists(st.tuples(st.integers(0, 5), lengths), min_size=1, max_size=30))
def test_no_update_leads_further_than_the_bound(handed):
    server, newest = listener(clip=1.5, clients=6), {}
    for client, length in handed:
        told = hand_in(server, client, 0, length)
        newest |= {client: length} if length else {}
        usual = sorted(newest.values())[(len(newest) - 1) // 2] if newest else 0.0
        assert 0 <= told[1] <= 1.5 * usual * (1 + 1e-6)


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


def test_what_is_held_back_is_clipped_too():
    """Otherwise one long update out of turn would be all that clusters are compared by."""
    server = robust("cfl-async", 2.0, Mix(5, 0.5), clients=4)
    for client in (0, 1, 2, 3, 3):
        server.updated(update(client, 0, HERE, vector(0 if client < 3 else 100, 1)), 0.0)
    before = server.held_back
    server.updated(update(3, 0, HERE, vector(100, 0)), 0.0)
    assert server.held_back == before + 1
    assert server.inner.latest.norms[3] == pytest.approx(2)


@pytest.mark.parametrize("method", ["fedavg", "fedcompass", "fedsea", "port", "fedat"])
def test_who_hands_its_start_back_has_no_weight_whatever_its_samples(method):
    """Of six clients the last leads nowhere: the models are the same if it claims a thousand million samples."""
    models = []
    for claimed in (20, 10**9):
        server = Robust(make_strategy(method, {}), 3.0, Mix(5, 0.5))
        updated = server.updated

        def lied_to(one, now, updated=updated, claimed=claimed):
            return updated(replace(one, weights=one.start, samples=claimed) if one.client == 5 else one, now)

        server.updated = lied_to
        sim = simulator(server, clients=6, stop=Stop(updates=36))
        sim.run()
        models.append(server.model_for(0))
    assert torch.equal(*models)
    assert not torch.equal(models[0], server.setting.initial)
