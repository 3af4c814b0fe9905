"""Clipping: an update that leads further than others do is scaled down to the bound."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polytempo.strategies.parts.robust import HANDFUL, Mix, needed
from polytempo.testing import update, vector
from support.robust import HERE, hand_in, listener, robust


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
    assert hand_in(server, 0, 0, 100) == [0, 100]
    assert hand_in(server, 1, 0, 1) == [0, 1]
    assert hand_in(server, 0, 0, 100) == [0, 1]


@pytest.mark.parametrize(
    ("members", "at_once", "count"),
    [(1, 1, 1), (2, 2, 2), (3, 3, 2), (5, 5, 3), (20, 20, 11), (1000, 1000, 501), (1000, 10, HANDFUL), (6, 2, 4)],
)
def test_nothing_moves_before_most_of_those_who_train_at_once_have_handed_in_or_a_handful(members, at_once, count):
    assert needed(members, at_once) == count


@pytest.mark.parametrize("clip", [None, 1.0])
def test_fast_attackers_who_are_a_fifth_are_not_measured_by_themselves_where_updates_are_mixed(clip):
    """Whoever attacks need not train, and hands in often before the first honest client does."""
    server = listener(clip, Mix(10, 0.5), clients=20)
    for turn in range(40):
        assert hand_in(server, turn % 4, 0, -1e6) == [0, 0]
    for client in range(4, 10):
        assert hand_in(server, client, 0, 1) == [0, 0]
    assert hand_in(server, 10, 0, 1) == [0, 1]
    assert abs(hand_in(server, 0, 0, -1e6)[1]) <= 1


def test_a_client_that_is_there_alone_is_not_held_up():
    server = listener(clip=1.0, clients=1)
    assert hand_in(server, 0, 0, 100) == [0, 100]


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


# Beside an update of 1e-45 float32 has no number for another that is clipped to three times its length.
lengths = st.just(0.0) | st.floats(2**-20, 1e4, width=32)


@given(st.lists(st.tuples(st.integers(0, 19), lengths), min_size=1, max_size=30))
def test_clipping_alone_holds_nothing_back(handed):
    server = listener(clip=3.0, clients=20)
    for client, length in handed:
        before = len(server.inner.told)
        told = hand_in(server, client, 0, length)
        assert len(server.inner.told) == before + 1
        assert (told[1] > 0) == (length > 0)
        assert not server.inner.told[-1].held_back
    assert server.held_back == 0


def test_an_attacker_that_comes_first_is_measured_as_soon_as_another_hands_in():
    server = listener(clip=3.0, clients=10)
    assert hand_in(server, 0, 0, 1e4) == [0, 1e4]
    assert hand_in(server, 1, 0, 1) == [0, 1]
    assert hand_in(server, 0, 0, 1e4) == pytest.approx([0, 3])


def test_whoever_stays_when_the_others_have_left_is_measured_by_them():
    server = listener(clip=3.0, clients=5)
    for client in range(4):
        hand_in(server, client, 0, 1)
        server.left(client, 1.0)
    assert hand_in(server, 4, 0, 1e4) == pytest.approx([0, 3])


def test_who_has_left_has_no_say_in_the_bound_where_updates_are_mixed():
    server = listener(clip=1.0, mix=Mix(3, 0.5), clients=5)
    for client, length in enumerate((1, 100, 100, 1)):
        hand_in(server, client, 0, length)
    server.left(0, 1.0)
    server.left(3, 1.0)
    hand_in(server, 4, 0, 50)
    assert sorted(server.norms) == [1, 2, 4]


@given(st.lists(st.tuples(st.integers(0, 5), lengths), min_size=1, max_size=30))
def test_no_update_leads_further_than_the_bound(handed):
    server, newest = listener(clip=1.5, clients=6), {}
    for client, length in handed:
        told = hand_in(server, client, 0, length)
        newest |= {client: length} if length else {}
        usual = sorted(newest.values())[(len(newest) - 1) // 2] if newest else 0.0
        assert 0 <= told[1] <= 1.5 * usual * (1 + 1e-6)


def test_what_is_held_back_is_clipped_too():
    """Otherwise one long update out of turn would be all that clusters are compared by."""
    server = robust("cfl-async", 2.0, Mix(5, 0.5), clients=4)
    for client in (0, 1, 2, 3, 3):
        server.updated(update(client, 0, HERE, vector(0 if client < 3 else 100, 1)), 0.0)
    before = server.held_back
    server.updated(update(3, 0, HERE, vector(100, 0)), 0.0)
    assert server.held_back == before + 1
    assert server.inner.latest.norms[3] == pytest.approx(2)
