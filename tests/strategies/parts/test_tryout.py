"""The tryout: who improves more, those who go on alone or those who mix."""

import math

import pytest

from polytempo.core.orders import Train
from polytempo.core.state import digest, pack, unpack
from polytempo.strategies import make_strategy
from polytempo.strategies.parts.personal import PersonalRule
from polytempo.strategies.parts.tryout import BEFORE, FEWEST, LENGTH, MOST, WARM_UP, Tryout
from polytempo.testing import begun, update, vector
from polytempo_client.personal.told import SETTLED, SOLO, TUTTI, JuryScores, Personal

CLIENTS = range(40)


def report(brier: float, rows: int = 10, changed: bool = False) -> JuryScores:
    return JuryScores(rows, (0.0,) * 4, (brier * rows, 0.0, 0.0, 0.0), changed)


def tried(solo: float, mixing: float) -> Tryout:
    """Everybody begins with .5 and has, from the warm-up to the first look, these scores; every second client a little
    less."""
    tryout = Tryout(seed=0)
    for task in range(WARM_UP + LENGTH):
        for client in CLIENTS:
            now = solo if tryout.plays_solo(client) else mixing
            tryout.take(client, report(0.5 if task < WARM_UP else now - 0.01 * (client % 2)), 0.0)
    return tryout


def alike(looks: int, kept: float = 0.0) -> Tryout:
    """Both sides have improved as much."""
    tryout = Tryout(seed=0)
    for client in range(looks):
        for side in (tryout.solo, tryout.mixing):
            side.take(client, 0.1 * (-1) ** client)
    tryout._decide(kept)
    return tryout


def test_a_quarter_of_the_clients_plays_solo_once_everybody_has_had_something_of_the_orchestra() -> None:
    tryout = Tryout(seed=0)
    assert not any(map(tryout.plays_solo, CLIENTS))
    for _ in range(WARM_UP):
        for client in CLIENTS:
            tryout.take(client, report(0.5), 0.0)
    soloists = [client for client in CLIENTS if tryout.plays_solo(client)]
    assert 5 <= len(soloists) <= 15
    assert soloists != [client for client in CLIENTS if Tryout(seed=1).plays_solo(client)]


def test_all_play_solo_when_those_who_did_improved_more() -> None:
    tryout = tried(solo=0.4, mixing=0.48)
    assert tryout.decided == "solo"
    assert all(map(tryout.plays_solo, range(100)))


def test_nobody_plays_solo_when_those_who_mixed_improved_more() -> None:
    tryout = tried(solo=0.48, mixing=0.4)
    assert tryout.decided == "mixing"
    assert not any(map(tryout.plays_solo, range(100)))


def test_nothing_is_decided_while_both_sides_improve_alike_or_few_were_looked_at() -> None:
    assert alike(FEWEST).decided == alike(MOST - 2).decided == ""
    few = Tryout(seed=0)
    for client in range(FEWEST - 1):
        few.solo.take(client, -1.0)
        few.mixing.take(client, 1.0)
    few._decide(1.0)
    assert few.decided == ""


@pytest.mark.parametrize(("kept", "decided"), [(0.21, "solo"), (0.19, "mixing")])
def test_when_both_sides_are_alike_it_is_decided_by_how_much_clients_would_keep(kept: float, decided: str) -> None:
    assert alike(MOST, kept).decided == decided


@pytest.mark.parametrize(("kept", "decided"), [(0.11, "solo"), (0.09, "mixing")])
def test_in_doubt_half_of_what_solo_is_ahead_by_counts_as_well(kept: float, decided: str) -> None:
    """Changes of -.7 and .3 on one side and of -.5 and .5 on the other: solo is ahead by .2, which may be chance."""
    tryout = Tryout(seed=0)
    for look in range(MOST):
        tryout.solo.take(look, -0.7 + look % 2)
        tryout.mixing.take(look, -0.5 + look % 2)
    tryout._decide(kept)
    assert tryout.decided == decided


def test_one_client_of_a_side_says_nothing() -> None:
    tryout = Tryout(seed=0)
    for look in range(MOST):
        assert tryout.decided == ""
        tryout.solo.take(0, -1.0)
        tryout.mixing.take(look, 1.0 + look)
        tryout._decide(0.0)
    assert tryout.decided == "mixing"


def test_a_look_is_the_logarithm_of_how_the_mean_score_has_changed_since_the_warm_up() -> None:
    tryout = Tryout(seed=0)
    for brier in (0.9,) * (WARM_UP - BEFORE) + (0.28, 0.28, 0.18, 0.18) + (0.03, 0.13) * (LENGTH // 2):
        tryout.take(3, report(brier), 0.0)
    side = tryout.solo if tryout.plays_solo(3) else tryout.mixing
    assert (side.looks, side.changes) == (1, {3: pytest.approx(math.log(0.1 / 0.25))})  # of .08 and .23, with .02 each
    for _ in range(LENGTH):
        tryout.take(3, report(0.23), 0.0)
    assert (side.looks, side.changes) == (2, {3: pytest.approx(0.0)})
    tryout.forget(3)
    assert side.changes == tryout.watched == tryout.reports == {}


def test_a_client_whose_data_have_changed_is_looked_at_anew() -> None:
    tryout = Tryout(seed=0)
    for _ in range(WARM_UP + LENGTH - 1):
        tryout.take(3, report(0.5), 0.0)
    tryout.take(3, report(0.9, changed=True), 0.0)
    assert 3 not in tryout.watched
    for brier in (0.28,) * BEFORE + (0.08,) * LENGTH:
        tryout.take(3, report(brier), 0.0)
    side = tryout.solo if tryout.plays_solo(3) else tryout.mixing
    assert (side.looks, side.changes) == (1, {3: pytest.approx(math.log(0.1 / 0.3))})


@pytest.mark.parametrize(
    ("clients", "spread", "decided"), [(2, 1.0, "solo"), (2, 1.04, ""), (8, 7.0, "solo"), (8, 7.2, "")]
)
def test_the_fewer_clients_the_further_a_side_has_to_be_ahead(clients: int, spread: float, decided: str) -> None:
    """Half of each side is at its mean less the spread, half at its mean plus it; the means are 10 apart. With two and
    two clients t = 10 / (sqrt(2) spread) must exceed 6.965, with eight and eight t = 10 / (sqrt(2/7) spread) 2.624."""
    tryout = Tryout(seed=0)
    for look in range(FEWEST):
        client = look % clients
        tryout.solo.take(client, spread * (-1) ** client)
        tryout.mixing.take(client, 10 + spread * (-1) ** client)
    tryout._decide(0.0)
    assert tryout.decided == decided


@pytest.mark.filterwarnings("error")
def test_models_without_any_error_say_nothing() -> None:
    tryout = Tryout(seed=0)
    for client in range(FEWEST):
        for side in (tryout.solo, tryout.mixing):
            side.take(client, 0.0)
    tryout._decide(0.0)
    assert tryout.decided == ""


def test_a_tryout_is_saved_with_the_strategy_and_orders_say_who_plays_solo() -> None:
    strategy, other = (begun(PersonalRule(make_strategy("fedasync", {})), vector(1, 2), 3) for _ in range(2))
    strategy.tryout = tried(solo=0.4, mixing=0.48)
    other.load_state(unpack(*pack(strategy.save_state())))
    assert digest(other.save_state()) == digest(strategy.save_state())
    (order,) = other.ready(0, 0.0) or ()
    assert isinstance(order, Train)
    assert order.personal == Personal(parameters={SOLO: 1.0, SETTLED: 1.0})
    list(other.updated(update(0, 0, vector(1, 2), vector(1, 2)), 1.0) or ())
    other.forget(0)


def test_a_client_that_rehearses_does_not_play_solo_and_is_looked_at_anew() -> None:
    strategy = begun(PersonalRule(make_strategy("concerto", {})), vector(1, 2), 3)
    strategy.tryout = tried(solo=0.4, mixing=0.48)
    strategy.tryout.watched[0] = (0.5, 0.1, 7)
    (order,) = strategy.ready(0, 0.0) or ()
    assert isinstance(order, Train)
    assert order.personal == Personal(parameters={TUTTI: 1.0})
    assert strategy.tryout.watched == {}
