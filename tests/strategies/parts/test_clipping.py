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


def test_who_has_left_has_no_say_in_the_bound():
    server = listener(clip=1.0, clients=5)
    for client, length in enumerate((1, 100, 100, 1)):
        hand_in(server, client, 0, length)
    server.left(0, 1.0)
    server.left(3, 1.0)
    assert hand_in(server, 4, 0, 50) == [0, 50]


lengths = st.floats(0, 1e4, width=32, allow_subnormal=False)


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
