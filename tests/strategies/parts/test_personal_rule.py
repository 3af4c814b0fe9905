"""The server's half of the personal rule: the pool of what juries say."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polytempo.core.orders import Train
from polytempo.core.state import digest, pack, unpack
from polytempo.strategies import make_strategy
from polytempo.strategies.parts.claims import CappedSamples
from polytempo.strategies.parts.personal import FEWEST, MOST_ROWS, PersonalRule
from polytempo.strategies.parts.robust import Mix, Robust
from polytempo.strategies.settings import StrategySettings
from polytempo.testing import begun, update, vector
from polytempo_client.personal.told import JuryScores, Personal

W = vector(1, 2)


def rule(clients: int = 8) -> PersonalRule:
    return begun(PersonalRule(make_strategy("fedasync", {})), W, clients)


def report(strategy: PersonalRule, client: int, jury: JuryScores | None) -> list[object]:
    return list(strategy.updated(replace(update(client, 0, W, W), jury=jury), 1.0) or ())


def scores(rows: int, error: float, brier: float = 0.0, changed: bool = False) -> JuryScores:
    return JuryScores(rows, (error,) * 4, (brier,) * 4, changed)


def pool(strategy: PersonalRule) -> JuryScores | None:
    return strategy.personal().pool


def test_every_order_to_train_asks_for_the_rule_and_others_stay_as_they_are() -> None:
    (order,) = rule().ready(0, 0.0) or ()
    assert isinstance(order, Train)
    assert order.personal == Personal()


def test_the_pool_is_the_mean_over_all_rows_once_five_clients_have_reported() -> None:
    strategy = rule()
    for client in range(FEWEST - 1):
        report(strategy, client, scores(10, 2.0, 1.0))
        assert pool(strategy) is None
    report(strategy, FEWEST - 1, scores(20, 2.0, 7.0))
    found = pool(strategy)
    assert found is not None
    assert found.rows == 1
    assert found.errors == pytest.approx([(4 * 2 + 2) / 60] * 4)
    assert found.briers == pytest.approx([(4 * 1 + 7) / 60] * 4)
    (order,) = strategy.ready(6, 2.0) or ()
    assert order.personal == Personal(pool=found)  # type: ignore[union-attr]


def test_the_newest_report_of_a_client_counts_and_none_of_one_that_left() -> None:
    strategy = rule()
    for client in range(6):
        report(strategy, client, scores(10, 5.0))
    for client in range(6):
        report(strategy, client, scores(10, 1.0))
    assert pool(strategy) == JuryScores(1, (0.1,) * 4, (0.0,) * 4)
    for client in (0, 1):
        list(strategy.left(client, 2.0) or ())
    assert pool(strategy) is None
    strategy.forget(2)
    assert sorted(strategy.reports) == [3, 4, 5]


def test_a_boast_of_many_rows_counts_as_a_few() -> None:
    strategy = rule()
    for client in range(5):
        report(strategy, client, scores(MOST_ROWS, 0.0))
    report(strategy, 5, scores(10**9, 1e9))
    assert pool(strategy) == JuryScores(1, (1 / 6,) * 4, (0.0,) * 4)
    assert strategy.bad_reports == 0


@pytest.mark.parametrize(
    "jury",
    [
        scores(0, 0.0),
        scores(-3, 0.0),
        scores(10, 11.0),
        scores(10, -1.0),
        scores(10, float("nan")),
        scores(10, 1.0, float("inf")),
        JuryScores(10, (1.0,), (1.0,)),
    ],
)
def test_a_report_that_cannot_be_true_is_counted_and_told_to_nobody(jury: JuryScores) -> None:
    strategy = rule()
    report(strategy, 0, jury)
    assert strategy.bad_reports == 1
    assert strategy.reports == {}


def test_a_missing_report_and_one_of_a_client_whose_data_changed_leave_the_pool_as_it_was() -> None:
    strategy = rule()
    report(strategy, 0, None)
    report(strategy, 0, scores(10, 5.0, changed=True))
    assert strategy.reports == {}
    assert strategy.bad_reports == 0


reports = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 50), st.floats(0, 1)), max_size=40)


@given(reports)
def test_the_pool_does_not_depend_on_the_order_of_reports_nor_on_those_that_were_replaced(
    told: list[tuple[int, int, float]],
) -> None:
    one, other = rule(), rule()
    for client, rows, share in told:
        report(one, client, scores(rows, share * rows))
    newest = {client: (rows, share) for client, rows, share in told}
    for client, (rows, share) in sorted(newest.items(), reverse=True):
        report(other, client, scores(rows, share * rows))
    assert (one.totals, one.rows) == (other.totals, other.rows)


def test_the_pool_is_saved_with_the_strategy() -> None:
    strategy, other = rule(), rule()
    for client in range(6):
        report(strategy, client, scores(10, client))
    other.load_state(unpack(*pack(strategy.save_state())))
    assert digest(other.save_state()) == digest(strategy.save_state())
    assert pool(other) == pool(strategy)


def test_the_rule_stands_outside_of_all_defences_and_not_around_those_who_are_alone() -> None:
    made = StrategySettings(strategy="fedasync", personal=True, clip=2.0, robust="median:5", samples_cap=3.0).make()
    assert isinstance(made, PersonalRule)
    assert isinstance(made.inner, CappedSamples)
    assert not isinstance(StrategySettings(strategy="standalone", personal=True).make(), PersonalRule)
    assert isinstance(StrategySettings(strategy="concerto").make(), PersonalRule)
    assert not isinstance(StrategySettings(strategy="fedasync").make(), PersonalRule)


def test_a_report_of_an_update_that_is_held_back_counts() -> None:
    strategy = begun(PersonalRule(Robust(make_strategy("fedasync", {}), None, Mix(3, 0.5))), W, 8)
    report(strategy, 0, scores(10, 5.0))
    assert strategy.held_back == 1
    assert strategy.reports[0].rows == 10
