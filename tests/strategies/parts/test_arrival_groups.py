"""Strategies whose clients arrive in groups: clients that change, are late, get lost or come back; and that every
update counts exactly once, whatever happens."""

import heapq
from itertools import chain
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from polytempo.core.events import Update
from polytempo.core.orders import Orders, SetTimer, Train
from polytempo.core.state import digest, pack, unpack
from polytempo.strategies.base.participation import EVERYONE, Quota
from polytempo.testing import begun, vector
from support.compass import CompassClock, Keeper, keeper_clock

# Clients that change, and clients that are late.


def steady_group(*seconds: float, **given: Any) -> tuple[CompassClock, float]:
    """Clients that have just been given work together, and the time. The fastest needs 1 s per step: 100 s in all."""
    clients = keeper_clock(*seconds, **given)
    compass = clients.strategy.compass
    while len(compass.groups) != 1 or len({task.start for task in compass.planned.values()}) > 1:
        clients.run(updates=len(clients.arrived) + 1)
    assert clients.groups == [list(range(len(seconds)))]
    for record in (clients.arrived, clients.ordered, clients.strategy.aggregated):
        record.clear()
    return clients, clients.now


def steps_of(clients: CompassClock) -> dict[int, int]:
    return {client: task.steps for client, task in sorted(clients.strategy.compass.planned.items())}


def aggregated(clients: CompassClock) -> list[list[int]]:
    """Whose updates made each version."""
    return [[client for client, _ in arrivals] for arrivals in clients.strategy.aggregated]


def test_a_client_that_becomes_five_times_slower_is_late_once():
    clients, began = steady_group(1.0, 1.0, 2.0)
    clients.seconds[1] = 5.0
    clients.run(until=began + 3000)
    assert [arrived.client for arrived in clients.arrived if arrived.late] == [1]
    assert clients.groups == [[0, 1, 2]]
    assert clients.strategy.compass.speed == pytest.approx({0: 1.0, 1: 5.0, 2: 2.0})


def test_a_client_that_becomes_faster_waits_once_and_is_then_given_more():
    clients, began = steady_group(1.0, 2.0, 4.0)
    assert steps_of(clients) == {0: 100, 1: 50, 2: 25}
    clients.seconds[2] = 0.8
    clients.run(until=began + 1000)
    assert not any(arrived.late for arrived in clients.arrived)
    assert clients.groups == [[0, 1, 2]]
    assert steps_of(clients) == {0: 80, 1: 40, 2: 100}


def test_a_late_update_counts_in_the_next_aggregation_and_its_client_gets_new_work_at_once():
    clients, began = steady_group(1.0, 1.0)
    clients.silence(1)
    clients.run(until=began + 120)  # the timer ends the group without it
    assert aggregated(clients) == [[0]]
    clients.hand_in(1, began + 150)
    assert aggregated(clients) == [[0]]
    # 150 s for 100 steps, and 70 s until the other is expected, who went on at 120 s
    assert (clients.ordered[-1].client, clients.ordered[-1].at, clients.ordered[-1].steps) == (1, began + 150, 46)
    clients.hand_in(1, began + 210)
    clients.run(until=began + 220)
    assert [sorted(clients) for clients in aggregated(clients)] == [[0], [0, 1, 1]]


def test_a_late_update_counts_in_whichever_group_is_aggregated_next():
    clients, began = steady_group(1.0, 1.0, 1.0)
    clients.silence(2)
    clients.run(until=began + 120)
    clients.hand_in(2, began + 210)  # too late to join the others once more: a group of its own
    assert clients.groups == [[0, 1], [2]]
    clients.run(until=began + 220)
    assert aggregated(clients) == [[0, 1], [0, 1, 2]]


def test_two_late_updates_of_the_same_client_both_count():
    clients, began = steady_group(1.0, 1.0)
    clients.silence(0, 1)
    clients.run()  # the group ends with nobody in it
    clients.hand_in(1, began + 200)
    clients.run(until=began + 430)
    assert aggregated(clients) == []
    clients.hand_in(1, began + 1000)
    assert aggregated(clients) == [[1]]  # the group was closed, and took the first
    assert [arrival.update.client for arrival in clients.strategy.late] == [1]
    clients.run()
    assert aggregated(clients) == [[1], [1]]


def test_a_client_that_never_returns_holds_up_nobody_beyond_the_latest_time_and_counts_once_when_it_does():
    clients, began = steady_group(1.0, 1.0, 2.0)
    clients.silence(2)
    clients.run(until=began + 1000)
    assert {arrived.at - began for arrived in clients.arrived} == {
        100.0,
        *(20.0 + 100 * number for number in range(2, 10)),
    }
    assert aggregated(clients) == [[0, 1]] * 9
    clients.hand_in(2, began + 1001)
    clients.run(until=began + 2000)
    assert list(chain(*aggregated(clients))).count(2) == 1
    assert 2 in aggregated(clients)[9]


def test_a_timer_with_nothing_to_aggregate_makes_no_version_and_one_with_only_late_updates_applies_them():
    clients, began = steady_group(1.0, 1.0)
    version = clients.strategy.model.version
    clients.silence(0, 1)
    clients.run()
    assert clients.now == pytest.approx(began + 120)
    assert clients.groups == []
    assert clients.strategy.model.version == version
    clients.hand_in(0, began + 500)
    assert clients.strategy.model.version == version
    clients.run()
    assert aggregated(clients) == [[0]]
    assert clients.strategy.model.version == version + 1


@pytest.mark.parametrize(("after", "late"), [(0.0, False), (1e-6, True)])
def test_an_arrival_at_the_latest_time_is_in_time_and_one_after_it_is_late_though_no_timer_was_told(after, late):
    clients, began = steady_group(1.0, 1.0)
    clients.silence(0, 1)
    (group,) = clients.strategy.compass.groups.values()
    clients.hand_in(0, began + 100)
    clients.hand_in(1, group.latest + after)
    assert aggregated(clients) == ([[0]] if late else [[0, 1]])
    assert len(clients.strategy.late) == late
    assert sorted(clients.training) == [0, 1]


def test_a_timer_of_a_group_that_is_closed_does_nothing():
    clients = keeper_clock(1.0, 2.0)
    clients.run(until=150.0)
    before = digest(clients.strategy.save_state())
    assert clients.strategy.compass.last_group > 1
    assert not clients.strategy.fired("1", 150.0)
    assert digest(clients.strategy.save_state()) == before


def test_a_group_is_closed_before_its_members_are_assigned_again():
    # The second comes early, long before the expected time: in an open group it could go on right there.
    clients = keeper_clock(1.0, 1.0, fewest=1, most=100)
    clients.run(until=1.0)
    assert clients.groups == [[0, 1]]
    for client in (0, 1):
        clients.hand_in(client, 2.0)
    assert [order.group for order in clients.ordered[-2:]] == [2, 2]


def test_a_group_whose_last_missing_member_leaves_is_aggregated_at_once():
    clients, began = steady_group(1.0, 1.0, 1.0)
    clients.silence(2)
    clients.run(until=began + 100)
    assert aggregated(clients) == []
    clients.leave(2, began + 101)
    assert aggregated(clients) == [[0, 1]]
    assert [(order.client, order.at) for order in clients.ordered[-2:]] == [(0, began + 101), (1, began + 101)]


def test_what_a_member_handed_in_counts_though_it_left_before_the_others_arrived():
    clients, began = steady_group(1.0, 1.0, 2.5)
    clients.silence(1)
    clients.run(until=began + 100)
    clients.strategy.left(2, began + 101)
    assert clients.groups == [[0, 1]]
    clients.hand_in(1, began + 110)
    assert [sorted(made) for made in aggregated(clients)] == [[0, 1, 2]]
    assert sorted(order.client for order in clients.ordered) == [0, 1]


def test_a_client_that_comes_back_is_planned_with_at_once():
    clients, began = steady_group(1.0, 2.0)
    clients.leave(1, began + 1)
    assert clients.strategy.joined(1, clients.now) is None
    orders = list(clients.strategy.ready(1, clients.now))
    assert [(order.client, order.due.group) for order in orders] == [(1, clients.strategy.compass.last_group)]


def test_a_saved_state_goes_on_as_if_nothing_had_happened():
    one, other = keeper_clock(1.0, 2.5, 7.0), keeper_clock(1.0, 2.5, 7.0)
    for clients in (one, other):
        clients.run(updates=20)
    other.strategy.load_state(unpack(*pack(other.strategy.save_state())))
    for clients in (one, other):
        clients.run(updates=40)
    assert digest(one.strategy.save_state()) == digest(other.strategy.save_state())


# Whatever happens.


class Happenings(RuleBasedStateMachine):
    """Clients come, train, are late, get lost and come back; timers are told when they are due or later. Updates are
    numbered, and their number is their model."""

    @initialize(quota=st.sampled_from([EVERYONE, EVERYONE, Quota(count=2), Quota(count=1, choice="round-robin")]))
    def begin(self, quota: Quota) -> None:
        self.quota = quota
        self.keeper: Any = begun(Keeper(q_min=2, q_max=40), vector(0.0), 0, quota)
        self.now = 0.0
        self.handed = 0
        self.away, self.paused, self.ready = set(range(6)), set[int](), set[int]()
        self.training: dict[int, Train] = {}
        self.timers: list[tuple[float, str]] = []
        self.closed: set[int] = set()
        self.open: set[int] = set()
        for client in range(3):
            self.come(client)
            self.get_ready(client)

    # What can happen.

    @rule(seconds=st.sampled_from([1.0, 0.5, 3.0, 10.0, 50.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.training)
    @rule(data=st.data(), seconds=st.sampled_from([1.0, 2.0, 0.0, 5.0]), ready=st.booleans())
    def somebody_hands_in(self, data: st.DataObject, seconds: float, ready: bool) -> None:
        self.now += seconds
        client = data.draw(st.sampled_from(sorted(self.training)))
        self.hand_in(client)
        if ready:
            self.get_ready(client)

    @precondition(lambda self: self.training)
    @rule(count=st.integers(1, 4))
    def the_next_arrive_as_expected(self, count: int) -> None:
        for _ in range(min(count, len(self.training))):
            client = min(self.training, key=lambda client: (self.expected(client), client))
            self.now = max(self.now, self.expected(client))
            self.hand_in(client)
            self.get_ready(client)

    @precondition(lambda self: self.paused)
    @rule(data=st.data())
    def somebody_says_ready(self, data: st.DataObject) -> None:
        self.get_ready(data.draw(st.sampled_from(sorted(self.paused))))

    @precondition(lambda self: len(self.away) < 6)
    @rule(data=st.data())
    def somebody_leaves(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(sorted(set(range(6)) - self.away)))
        self.paused.discard(client)
        self.ready.discard(client)
        self.training.pop(client, None)
        self.away.add(client)
        self.obey(self.keeper.left(client, self.now))

    @precondition(lambda self: self.away)
    @rule(data=st.data(), ready=st.booleans())
    def somebody_comes(self, data: st.DataObject, ready: bool) -> None:
        client = data.draw(st.sampled_from(sorted(self.away)))
        self.come(client)
        if ready:
            self.get_ready(client)

    @precondition(lambda self: self.timers)
    @rule()
    def the_next_timer_is_told(self) -> None:
        at, key = heapq.heappop(self.timers)
        self.now = max(self.now, at)
        self.obey(self.keeper.fired(key, self.now))

    @precondition(lambda self: self.ready and not self.paused and not self.training)
    @rule()
    def everybody_waits(self) -> None:
        self.tell_all_timers()
        assert self.training

    # What it means.

    def expected(self, client: int) -> float:
        due = self.training[client].due
        return self.now + 1 + client if due is None else due.expected

    def come(self, client: int) -> None:
        self.away.remove(client)
        self.paused.add(client)
        self.obey(self.keeper.joined(client, self.now))

    def get_ready(self, client: int) -> None:
        self.paused.remove(client)
        self.ready.add(client)
        self.obey(self.keeper.ready(client, self.now))

    def hand_in(self, client: int) -> None:
        order = self.training.pop(client)
        self.paused.add(client)
        update = Update(client, order.version, order.weights, vector(self.handed), 1, order.work.steps or 0)
        self.handed += 1
        self.obey(self.keeper.updated(update, self.now))

    def tell_all_timers(self) -> None:
        while self.timers:
            self.the_next_timer_is_told()

    def obey(self, orders: Orders) -> None:
        for order in orders or ():
            if isinstance(order, SetTimer):
                assert order.at >= self.now
                heapq.heappush(self.timers, (order.at, order.key))
                continue
            assert isinstance(order, Train)
            assert order.client in self.ready
            assert order.work.steps is not None
            assert 2 <= order.work.steps <= 40
            self.ready.remove(order.client)
            self.training[order.client] = order

    # What is always so.

    @invariant()
    def every_update_is_in_one_assign(self) -> None:
        waiting = [arrival.update for arrival in chain(*self.keeper.gathered.values(), self.keeper.late)]
        numbers = [number for _, number in chain(*self.keeper.aggregated)]
        assert sorted(numbers + [update.weights.item() for update in waiting]) == list(range(self.handed))
        assert self.keeper.model.version == len(self.keeper.aggregated)
        assert all(self.keeper.aggregated)

    @invariant()
    def the_quota_holds(self) -> None:
        assert len(self.training) <= self.quota.of(6 - len(self.away))

    @invariant()
    def the_books_agree(self) -> None:
        compass = self.keeper.compass
        for number, group in compass.groups.items():
            assert group.waiting
            assert not group.waiting.keys() & group.arrived.keys()
            assert str(number) in [key for _, key in self.timers]
            for client in (*group.waiting, *group.arrived):
                assert compass.group_of(client) is group
            assert not group.arrived.keys() & self.training.keys()
        for client in compass.planned:
            group = compass.group_of(client)
            assert group is None or client in group.waiting or client in group.arrived
        assert self.training.keys() <= compass.planned.keys()
        assert not self.away & compass.planned.keys()
        assert self.keeper.gathered.keys() <= compass.groups.keys()
        self.closed |= self.open - compass.groups.keys()
        self.open = set(compass.groups)
        assert not self.open & self.closed

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        if self.ready and not self.paused and not self.training:
            assert self.keeper.compass.groups

    def teardown(self) -> None:
        """If all go on handing in and the timers are told, nothing of what was there is left over. A client's
        first update takes no late ones along, so that with a quota this may have to wait until all have had a turn."""
        for client in sorted(self.paused):
            self.get_ready(client)
        self.tell_all_timers()
        handed = self.handed
        for _ in range(7 if self.ready or self.training else 0):
            assert self.training
            for client in sorted(self.training):
                self.hand_in(client)
                self.get_ready(client)
            self.tell_all_timers()
            self.every_update_is_in_one_assign()
        if self.training:
            assert set(range(handed)) <= {number for _, number in chain(*self.keeper.aggregated)}


TestHappenings = Happenings.TestCase
TestHappenings.settings = settings(max_examples=120, stateful_step_count=50)
