"""Whom to pick: quotas hold, nobody is picked twice, everyone's turn comes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polytempo.core.errors import UserError
from polytempo.core.state import pack, unpack
from polytempo.strategies.base.participation import Participation, Quota, parse_quota


def joined(quota: Quota, clients: int, seed: int = 0) -> Participation:
    participation = Participation(quota, seed)
    for client in range(clients):
        participation.join(client)
    return participation


@given(
    st.integers(1, 8),
    st.sampled_from(["random", "round-robin"]),
    st.lists(st.tuples(st.sampled_from(["finish", "leave", "join"]), st.integers(0, 9)), max_size=60),
)
def test_never_more_than_k_are_busy_and_none_twice(k, choice, happenings):
    participation = joined(Quota(count=k, choice=choice), 10)
    busy: set[int] = set()

    def start(clients: list[int]) -> None:
        assert not busy & set(clients)
        busy.update(clients)

    for client in range(10):
        start(participation.release(client))
    for what, client in happenings:
        if what == "finish" and client in busy:
            busy.remove(client)
            start(participation.release(client))
        elif what == "leave" and client in participation.members:
            busy.discard(client)
            participation.leave(client)
            start(participation.fill())
        elif what == "join" and client not in participation.members:
            participation.join(client)
            start(participation.release(client))
        assert len(busy) == participation.busy == min(k, len(participation.members))


def test_round_robin_takes_clients_in_the_order_they_became_ready():
    participation = joined(Quota(count=1, choice="round-robin"), 3)
    turns = [client for c in (0, 1, 2) for client in participation.release(c)]
    for _ in range(5):
        turns += participation.release(turns[-1])
    assert turns == [0, 1, 2, 0, 1, 2]


def test_random_choice_reaches_everyone_and_repeats_with_the_seed():
    def turns(seed: int) -> list[int]:
        participation = joined(Quota(count=1), 5, seed)
        picked = [client for c in range(5) for client in participation.release(c)]
        for _ in range(60):
            picked += participation.release(picked[-1])
        return picked

    assert set(turns(1)) == set(range(5))
    assert turns(1) == turns(1) != turns(2)


def test_a_busy_client_that_joins_again_is_not_counted_twice():
    participation = joined(Quota(count=1), 2)
    (first,) = participation.release(0)
    participation.join(first)
    assert participation.busy == 0
    assert participation.release(1) == [1]


def test_a_saved_participation_goes_on_as_if_nothing_had_happened():
    one = joined(Quota(count=2), 6)
    busy = [client for c in range(6) for client in one.release(c)]
    other = unpack(*pack(one))
    assert [one.release(client) for client in busy] == [other.release(client) for client in busy]


@pytest.mark.parametrize("text", ["k:0", "k", "share:0", "share:1.5", "some", "k:3:alphabetical", "all:4"])
def test_a_malformed_quota_is_refused(text):
    with pytest.raises(UserError, match="Expected all, k:NUMBER"):
        parse_quota(text)


def test_quotas_in_words():
    assert parse_quota("all").of(7) == 7
    assert parse_quota("k:3").of(7) == 3
    assert parse_quota("share:0.1").of(20) == 2
    assert parse_quota("k:3:round-robin").choice == "round-robin"


@pytest.mark.parametrize("choice", ["random", "round-robin"])
def test_a_round_among_some_takes_the_quota_of_them_or_nobody(choice):
    participation = joined(Quota(count=2, choice=choice), 6)
    for client in (5, 3, 1):
        participation.rest(client)
    assert participation.begin_round_among([0, 1, 2]) == []  # two are wanted, one is idle
    picked = participation.begin_round_among([1, 3, 4, 5])
    assert len(set(picked)) == participation.busy == 2
    assert set(picked) <= {1, 3, 5}
    assert choice == "random" or picked == [5, 3]  # in the order they became ready
    assert participation.begin_round_among([1, 3, 5]) == []
    assert participation.begin_round_among([]) == []


def test_a_round_among_some_reaches_everyone_and_repeats_with_the_seed():
    def turns(seed: int) -> list[list[int]]:
        participation = joined(Quota(share=0.5), 8, seed)
        for client in range(8):
            participation.rest(client)
        rounds = []
        for _ in range(30):
            rounds.append(participation.begin_round_among([1, 3, 5, 7]))
            for client in rounds[-1]:
                participation.rest(client)
        return rounds

    assert {client for picked in turns(1) for client in picked} == {1, 3, 5, 7}
    assert all(len(picked) == 2 for picked in turns(1))
    assert turns(1) == turns(1) != turns(2)
