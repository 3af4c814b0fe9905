"""The Compass scheduler: who joins which group with how many steps, and where steady clients end."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from polytempo.strategies.parts.compass import ArrivalGroup, Compass
from support.compass import keeper_clock


def known(compass: Compass, *speeds: float, now: float = 0.0) -> Compass:
    """A compass that knows these clients, none of whom has work."""
    for client, seconds in enumerate(speeds):
        compass.assign(client, now - compass.fewest * seconds)
        arrive(compass, client, now)
    return compass


def arrive(compass: Compass, client: int, now: float) -> ArrivalGroup | None:
    """A client comes with all of its steps."""
    return compass.arrive(client, now, compass.planned[client].steps)


# The scheduler.


def test_a_client_of_unknown_speed_gets_the_fewest_steps_and_no_group():
    compass = Compass(20, 100, 1.2)
    assert compass.assign(3, 7.0) is None
    assert (compass.planned[3].group, compass.planned[3].steps, compass.planned[3].start) == (None, 20, 7.0)
    assert compass.groups == {}


def test_the_speed_is_that_of_the_last_round_alone():
    compass = known(Compass(20, 100, 1.2), 1.0)
    compass.assign(0, 0.0)
    arrive(compass, 0, 500.0)
    assert compass.speed[0] == 5.0


def test_a_client_that_did_fewer_steps_than_it_was_given_is_as_fast_as_it_was():
    compass = Compass(20, 100, 1.2)
    for client, steps in enumerate((5, 0)):
        compass.assign(client, 0.0)
        compass.arrive(client, 10.0, steps)
    assert compass.speed == {0: 2.0, 1: 10.0}


def test_of_the_groups_that_it_can_join_a_client_takes_the_one_with_most_steps_and_of_equals_the_newest():
    compass = known(Compass(2, 10, 1.2), 1.0, 5.0, 10.0, 4.0)
    near = compass.assign(0, 0.0)  # alone: 10 steps
    assert near is not None
    assert compass.assign(1, 0.0) is None  # 2 steps are enough to join
    far = compass.assign(2, 0.0)
    assert far is not None
    assert (far.expected, far.latest) == (20.0, 24.0)  # 10 + 10 x 1 is two of its steps
    compass.assign(3, 0.0)
    assert (compass.planned[3].group, compass.planned[3].steps) == (far.number, 5)
    compass.leave(3)
    near.expected = far.expected
    compass.assign(3, 0.0)
    assert (compass.planned[3].group, compass.planned[3].steps) == (far.number, 5)
    compass.leave(3)
    near.expected = 24.0
    compass.assign(3, 0.0)
    assert (compass.planned[3].group, compass.planned[3].steps) == (near.number, 6)


@pytest.mark.parametrize(
    ("expected", "fastest", "own", "steps"),
    [
        (30.0, 1.0, 4.0, 32),  # (30 + 100 - 0) / 4
        (3.0, 0.5, 3.0, 20),  # 17, too few
        (3.0, 2.0, 2.0, 100),  # 101, too many: nobody could join anyway
        (0.0, 1.0, 2.0, 100),  # it is not before the expected time any more
    ],
)
def test_a_new_group_waits_for_another_to_come_and_join_it_where_that_can_be(expected, fastest, own, steps):
    compass = known(Compass(20, 100, 1.2), fastest, own)
    other = compass.assign(0, 0.0)
    assert other is not None
    other.expected = expected
    made = compass.assign(1, 0.0)
    assert made is not None
    assert made.number == 2
    assert compass.planned[1].steps == steps
    assert made.expected == pytest.approx(steps * own)
    assert made.latest == pytest.approx(1.2 * steps * own)


def test_the_most_steps_that_any_group_suggests_are_what_a_new_one_is_given():
    compass = known(Compass(20, 100, 1.2), 1.0, 1.0, 4.0)
    for client, expected in ((0, 10.0), (1, 50.0)):
        group = compass.assign(client, 0.0)
        assert group is not None
        group.expected = expected
    compass.assign(2, 0.0)
    assert compass.planned[2].steps == (50 + 100) // 4


def test_the_fastest_of_a_group_counts_also_when_it_has_arrived():
    compass = known(Compass(20, 100, 1.2), 1.0, 2.0, 20.0)
    group = compass.assign(0, 0.0)
    compass.assign(1, 0.0)
    assert arrive(compass, 0, 50.0) is group  # twice as fast as before
    compass.assign(2, 50.0)
    assert compass.planned[2].steps == 20  # lifted: (100 + 100 x 0.5 - 50) / 20 is 5
    compass = known(Compass(1, 100, 1.2), 1.0, 2.0, 60.0)
    compass.assign(0, 0.0)
    compass.assign(1, 0.0)
    arrive(compass, 0, 50.0)
    compass.assign(2, 50.0)
    assert compass.planned[2].steps == (100 + 50 - 50) // 60


def test_a_closed_group_frees_who_has_arrived_the_fastest_first_and_takes_nobody_any_more():
    compass = known(Compass(20, 100, 1.2), 3.0, 1.0, 2.0)
    for client in (1, 2, 0):
        compass.assign(client, 0.0)
    arrive(compass, 2, 90.0)
    arrive(compass, 1, 99.0)
    assert compass.close(1) == [1, 2]
    assert list(compass.planned) == [0]
    assert compass.group_of(0) is None
    assert arrive(compass, 0, 100.0) is None
    made = compass.assign(0, 100.0)
    assert made is not None
    assert made.number == 2


def test_a_client_that_answers_in_no_time_can_be_planned_with():
    compass = known(Compass(20, 100, 1.2), 0.0, 1.0)
    assert compass.assign(0, 0.0) is not None
    assert compass.assign(1, 0.0) is not None
    assert compass.planned[1].steps == 20


# Steady speeds.

RATIOS = st.tuples(st.integers(10, 40), st.floats(2, 5)).map(lambda drawn: (drawn[0], int(drawn[0] * drawn[1])))


@settings(max_examples=60)
@given(RATIOS, st.lists(st.floats(0, 1), min_size=2, max_size=8), st.floats(1e-3, 1e3))
def test_steady_clients_within_the_ratio_of_steps_end_in_one_group_and_stay_there(steps, places, fastest):
    fewest, most = steps
    seconds = [fastest * (1 + place * (most / fewest - 1)) for place in places]
    assume(max(seconds) / min(seconds) <= most / fewest)
    clients = keeper_clock(*seconds, fewest=fewest, most=most)
    round_seconds = most * max(seconds)
    clients.run(until=5 * round_seconds)
    for _ in range(5 * len(seconds)):
        clients.run(updates=len(clients.arrived) + 1)
        assert clients.groups == [list(range(len(seconds)))]
    assert not any(arrived.late for arrived in clients.arrived)


@settings(max_examples=60)
@given(st.integers(1, 100), st.floats(1, 20), st.lists(st.floats(0, 1), min_size=2, max_size=8), st.floats(0, 1e5))
def test_who_is_in_one_group_stays_there_at_any_ratio_of_steps(fewest, ratio, places, now):
    most = int(fewest * ratio)
    speeds = [1 + place * (most / fewest - 1) for place in places]
    assume(max(speeds) / min(speeds) <= most / fewest)
    compass = known(Compass(fewest, most, 1.2), *speeds, now=now)
    for _ in range(10):
        together = compass.fastest_first(range(len(speeds)))
        made = [compass.assign(client, now) for client in together]
        assert [group is not None for group in made] == [True] + [False] * (len(speeds) - 1)
        arrivals = {client: now + compass.planned[client].steps * speeds[client] for client in together}
        for client in sorted(together, key=arrivals.__getitem__):
            group = arrive(compass, client, arrivals[client])
            assert group is not None
            assert arrivals[client] <= group.latest
        assert not group.waiting
        now = max(arrivals.values())
        compass.close(group.number)


@pytest.mark.parametrize(
    ("fewest", "most", "seconds"),
    [(20, 35, (1.52, 1.06, 1.29)), (100, 190, (1.5, 1.35, 1.03, 1.43, 1.36)), (2, 4, (1.39, 1.05, 1.32, 1.76))],
)
def test_below_a_ratio_of_two_or_with_few_steps_clients_may_chase_each_other_in_two_groups_for_ever(
    fewest, most, seconds
):
    clients = keeper_clock(*seconds, fewest=fewest, most=most)
    clients.run(until=100 * most * max(seconds))
    for _ in range(20 * len(seconds)):
        clients.run(updates=len(clients.arrived) + 1)
        assert len(clients.groups) == 2
