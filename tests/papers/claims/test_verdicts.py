"""Verdicts by results that were made by hand."""

import math
from collections.abc import Mapping, Sequence

import pytest

from polytempo.papers import Bench, Case, Column, Table, benches
from polytempo.papers.claims.claims import Claim, Paper
from polytempo.papers.claims.rules import Name, Value
from polytempo.papers.claims.verdicts import Results, Verdict, judge
from polytempo.papers.records import Record

Figures = Mapping[str, Sequence[float | None]]
"""A figure of each row, one per seed; None where the row has not run."""


def claim(rule: str, **more: float) -> Claim:
    return Claim("c", "p", "1", "a claim", bench="b", table="t", rule=rule, **more)  # type: ignore[arg-type]


def verdict(rule: str, figures: Figures, **more: float) -> Verdict:
    seeds = range(max(map(len, figures.values())))

    def lookup(name: Name, seed: int) -> Value | None:
        values = figures.get(name.row, ())
        value = values[seed] if seed < len(values) else None
        return None if value is None else Value(value)

    return judge(claim(rule, **more), lookup, seeds)


AHEAD = 'x["a"] - x["b"] > 0'
FASTER = 'x["a"] / x["b"] > 1'


def test_a_claim_holds_in_direction_and_size() -> None:
    found = verdict(AHEAD, {"a": [12, 13, 14], "b": [2, 2, 3]}, size=10, tolerance=2)
    assert (found.word, found.seeds, found.ours) == ("holds", 3, pytest.approx(32 / 3))
    assert found.low == pytest.approx(32 / 3 - 4.302653 * math.sqrt(1 / 3) / math.sqrt(3), abs=1e-5)


def test_a_claim_of_another_size_has_its_direction_only() -> None:
    assert verdict(AHEAD, {"a": [12, 13, 14], "b": [2, 2, 3]}, size=30, tolerance=15).word == "direction"


def test_a_claim_without_a_size_holds_by_its_direction() -> None:
    assert verdict(AHEAD, {"a": [12, 13, 14], "b": [2, 2, 3]}).word == "holds"


def test_the_opposite_contradicts() -> None:
    assert verdict(AHEAD, {"a": [2, 2, 3], "b": [12, 13, 14]}).word == "contradicted"
    assert verdict('x["a"] - x["b"] < 5', {"a": [12, 13, 14], "b": [2, 2, 3]}).word == "contradicted"


def test_an_interval_with_both_signs_leaves_it_open() -> None:
    found = verdict(AHEAD, {"a": [3, 1, 4], "b": [2, 2, 2]})
    assert (found.word, found.why) == ("open", "the interval has both signs")


@pytest.mark.parametrize(
    ("figures", "why"),
    [
        ({"a": [9, 9], "b": [1, 1]}, "fewer than three seeds"),
        ({"a": [9], "b": [1]}, "fewer than three seeds"),
        ({"a": [9, 9, 9], "b": []}, "no run of t: b"),
        ({"a": [9, 9, 9, None, None, None], "b": [None, None, None, 1, 1, 1]}, "no seed has all that is compared"),
    ],
)
def test_fewer_than_three_seeds_leave_it_open(figures: Figures, why: str) -> None:
    found = verdict(AHEAD, figures)
    assert (found.word, found.why) == ("open", why)
    assert not found.decided


def test_only_seeds_that_all_rows_have_count() -> None:
    found = verdict(AHEAD, {"a": [9, 9, 9, 0, None], "b": [1, 1, 1, None, 50]})
    assert (found.word, found.seeds) == ("holds", 3)


def test_quotients_are_compared_by_their_logarithms() -> None:
    figures = {"a": [2.0, 20.0, 200.0], "b": [1.0, 5.0, 25.0]}
    found = verdict(FASTER, figures, size=4, tolerance=1.1)
    assert (found.word, found.ours) == ("open", pytest.approx(4.0))
    steady = {"a": [3.5, 4.0, 4.5], "b": [1.0, 1.0, 1.0]}
    assert verdict(FASTER, steady, size=7.5, tolerance=2).word == "holds"
    assert verdict(FASTER, steady, size=9, tolerance=2).word == "direction"
    assert verdict('x["a"] / x["b"] < 2', steady).word == "contradicted"


def test_a_claim_that_is_not_tested_says_why() -> None:
    untested = Claim("c", "p", "1", "a claim", reason="no data")
    assert judge(untested, lambda name, seed: None, ()) == Verdict("not tested", why="no data")


# Records.

COLUMNS = (Column("accuracy", "accuracy %", scale=100.0), Column("time_to_target", "time"), Column("virtual_time", "s"))
ROWS = [Case("ours", {}), Case("ours, paper's settings", {}), Case("base", {})]
BENCH = Bench("claims-test", "A test", "", [Table("t", "T", "", {}, ROWS, COLUMNS)], {})


def record(label: str, seed: int, accuracy: float, time: float | None) -> Record:
    figures = {"accuracy": accuracy, "time_to_target": time, "virtual_time": 100.0}
    return Record("t", label, "fedavg", seed, f"{label}{seed}", figures, {})


def results() -> Results:
    rows = {"ours": (0.9, 10.0), "ours, paper's settings": (0.7, 50.0), "base": (0.8, None)}
    made = [record(label, seed, accuracy, time) for label, (accuracy, time) in rows.items() for seed in (1, 2, 3)]
    return Results(lambda bench: made if bench == "claims-test" else [])


def of_records(rule: str, **more: float) -> Claim:
    return Claim("c", "p", "1", "a claim", bench="claims-test", table="t", rule=rule, **more)  # type: ignore[arg-type]


def test_figures_are_those_that_columns_show() -> None:
    with benches.lent("claims-test", BENCH):
        found = results().verdict(of_records('accuracy["ours"] - accuracy["base"] > 0', size=10, tolerance=1))
    assert (found.word, found.ours) == ("holds", pytest.approx(10.0))


def test_a_target_that_was_not_reached_decides_the_direction_and_not_the_size() -> None:
    rule = 'time_to_target["base"] / time_to_target["ours"] > 1'
    with benches.lent("claims-test", BENCH):
        found = results().verdict(of_records(rule, size=10, tolerance=2))
        assert (found.word, found.ours, found.bound) == ("direction", pytest.approx(10.0), True)
        assert results().verdict(of_records('reached(time_to_target["base"]) < 0.5')).word == "holds"


def test_a_claim_is_also_judged_by_the_papers_literal_settings() -> None:
    paper = Paper("p", "P", {"ours": "ours, paper's settings"})
    with benches.lent("claims-test", BENCH):
        found = results().verdict(of_records('accuracy["ours"] - accuracy["base"] > 0'), paper)
    assert (found.word, found.ours) == ("contradicted", pytest.approx(-10.0))
