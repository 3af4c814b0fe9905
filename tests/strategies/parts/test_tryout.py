"""The tryout: who improves more, those who go on alone or those who mix."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polytempo.core.orders import SETTLED, SOLO, TUTTI, JuryScores, Personal, Train
from polytempo.core.state import digest, pack, unpack
from polytempo.strategies import make_strategy
from polytempo.strategies.parts.personal import PersonalRule
from polytempo.strategies.parts.tryout import FEWEST, LENGTH, MOST, WARM_UP, Side, Tryout
from polytempo.testing import begun, update, vector

CLIENTS = range(40)


def report(brier: float, rows: int = 10, changed: bool = False) -> JuryScores:
    return JuryScores(rows, (0.0,) * 4, (brier * rows, 0.0, 0.0, 0.0), changed)


def tried(solo: float, mixing: float, looks: int = 1) -> Tryout:
    """Everybody begins with .5. At each look the soloists are better by ``solo``, the others by ``mixing``, and every
    second client by a little more."""
    tryout = Tryout(seed=0)
    gains: dict[int, float] = {}
    for task in range(WARM_UP + looks * LENGTH):
        for client in CLIENTS:
            looked = max(task + 1 - WARM_UP, 0) // LENGTH
            gains[client] = solo if tryout.plays_solo(client) else mixing
            tryout.take(client, report(0.5 - looked * (gains[client] + 0.01 * (client % 2))))
    return tryout


def alike(looks: int) -> Tryout:
    """Both sides have improved as much."""
    tryout = Tryout(seed=0)
    for change in (0.1, -0.1) * (looks // 2):
        tryout.solo.take(change)
        tryout.mixing.take(change)
    tryout._decide()
    return tryout


def test_a_quarter_of_the_clients_plays_solo_once_everybody_has_had_something_of_the_orchestra() -> None:
    tryout = Tryout(seed=0)
    assert not any(map(tryout.plays_solo, CLIENTS))
    for _ in range(WARM_UP):
        for client in CLIENTS:
            tryout.take(client, report(0.5))
    soloists = [client for client in CLIENTS if tryout.plays_solo(client)]
    assert 5 <= len(soloists) <= 15
    assert soloists != [client for client in CLIENTS if Tryout(seed=1).plays_solo(client)]


def test_all_play_solo_when_those_who_did_improved_more() -> None:
    tryout = tried(solo=0.1, mixing=0.02)
    assert tryout.decided == "solo"
    assert all(map(tryout.plays_solo, range(100)))


def test_nobody_plays_solo_when_those_who_mixed_improved_more() -> None:
    tryout = tried(solo=0.02, mixing=0.1)
    assert tryout.decided == "mixing"
    assert not any(map(tryout.plays_solo, range(100)))


def test_nothing_is_decided_while_both_sides_improve_alike_or_few_were_looked_at() -> None:
    assert alike(FEWEST).decided == alike(MOST - 2).decided == ""
    few = Tryout(seed=0)
    for _ in range(FEWEST - 1):
        few.solo.take(-1.0)
        few.mixing.take(1.0)
    few._decide()
    assert few.decided == ""


def test_when_in_doubt_all_play_solo() -> None:
    assert alike(MOST).decided == "solo"


def test_a_client_whose_data_have_changed_is_looked_at_anew() -> None:
    tryout = Tryout(seed=0)
    for _ in range(WARM_UP + 1):
        tryout.take(3, report(0.5))
    tryout.take(3, report(0.9, changed=True))
    assert 3 not in tryout.begun
    for _ in range(LENGTH):
        tryout.take(3, report(0.2))
    assert tryout.solo.looks + tryout.mixing.looks == 0
    tryout.take(3, report(0.1))
    side = tryout.solo if tryout.plays_solo(3) else tryout.mixing
    assert (side.looks, side.mean) == (1, pytest.approx(-0.1))


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=50))
def test_a_side_knows_the_mean_and_its_standard_error(changes: list[float]) -> None:
    side = Side()
    for change in changes:
        side.take(change)
    mean = sum(changes) / len(changes)
    variance = sum((change - mean) ** 2 for change in changes) / (len(changes) - 1)
    assert side.mean == pytest.approx(mean, abs=1e-9)
    assert side.variance_of_mean == pytest.approx(variance / len(changes), abs=1e-9)


def test_a_tryout_is_saved_with_the_strategy_and_orders_say_who_plays_solo() -> None:
    strategy, other = (begun(PersonalRule(make_strategy("fedasync", {})), vector(1, 2), 3) for _ in range(2))
    strategy.tryout = tried(solo=0.1, mixing=0.02)
    other.load_state(unpack(*pack(strategy.save_state())))
    assert digest(other.save_state()) == digest(strategy.save_state())
    (order,) = other.ready(0, 0.0) or ()
    assert isinstance(order, Train)
    assert order.personal == Personal(parameters={SOLO: 1.0, SETTLED: 1.0})
    list(other.updated(update(0, 0, vector(1, 2), vector(1, 2)), 1.0) or ())
    other.forget(0)


def test_a_client_that_rehearses_does_not_play_solo_and_is_looked_at_anew() -> None:
    strategy = begun(PersonalRule(make_strategy("concerto", {})), vector(1, 2), 3)
    strategy.tryout = tried(solo=0.1, mixing=0.02)
    strategy.tryout.begun[0] = (0.5, 3)
    (order,) = strategy.ready(0, 0.0) or ()
    assert isinstance(order, Train)
    assert order.personal == Personal(parameters={TUTTI: 1.0})
    assert strategy.tryout.begun == {}
