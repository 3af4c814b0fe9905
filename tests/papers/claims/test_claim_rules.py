"""The little language of rules: what it works out, and that it is no more than that."""

from collections.abc import Mapping

import pytest

from polytempo.papers.claims.rules import Lookup, Name, RuleError, Value, read_rule

NOT_REACHED = Value(100.0, at_least=True)


def lookup(**figures: float | Value) -> Lookup:
    """One row per name, and one figure of it, ``x``."""
    known = {row: value if isinstance(value, Value) else Value(value) for row, value in figures.items()}
    return lambda name: known.get(name.row) if name.figure == "x" else None


def left(text: str, **figures: float | Value) -> Value | None:
    return read_rule(f"{text} > 0").left_value(lookup(**figures))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('x["a"] - x["b"]', 4.0),
        ('x["a"] / x["b"] * 2 + 1', 7.0),
        ('-(x["a"] - 10)', 4.0),
        ('max(x["a"], x["b"], 5)', 6.0),
        ('min(x["a"], x["b"])', 2.0),
        ('mean(x["a"], x["b"])', 4.0),
        ('gmean(x["a"] / x["b"], 12)', 6.0),
        ('abs(x["b"] - x["a"])', 4.0),
    ],
)
def test_an_expression_is_worked_out(text: str, expected: float) -> None:
    found = left(text, a=6.0, b=2.0)
    assert found is not None
    assert found.number == pytest.approx(expected)
    assert not found.at_least


def test_an_expression_that_lacks_a_figure_has_no_value_but_the_best_of_some_has() -> None:
    assert left('x["a"] - x["b"]', a=1.0) is None
    assert left('max(x["a"], x["b"])', a=1.0) == Value(1.0)
    assert left('max(x["b"], x["c"])', a=1.0) is None


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ({"a": NOT_REACHED, "b": 20.0}, Value(5.0, at_least=True)),
        ({"a": NOT_REACHED, "b": 200.0}, Value(1.0, at_least=True)),
        ({"a": 20.0, "b": NOT_REACHED}, Value(0.2, at_least=True)),
        ({"a": 300.0, "b": NOT_REACHED}, Value(1.0, at_least=True)),
        ({"a": NOT_REACHED, "b": NOT_REACHED}, None),
    ],
    ids=["later than", "not later than it ran", "sooner than", "nobody knows", "neither"],
)
def test_a_time_that_was_not_reached_is_a_bound(figures: Mapping[str, float | Value], expected: Value | None) -> None:
    assert left('x["a"] / x["b"]', **figures) == expected


def test_whether_a_target_was_reached_is_one_or_zero() -> None:
    assert left('reached(x["a"])', a=3.0) == Value(1.0)
    assert left('reached(x["a"])', a=NOT_REACHED) == Value(0.0)
    assert left('min(x["a"], x["b"])', a=NOT_REACHED, b=3.0) == Value(3.0)


def test_a_rule_knows_its_figures_and_whether_it_is_about_a_quotient() -> None:
    rule = read_rule('x["a"] / y["t", "a"] > z["b", "t", "a"] - x["a"]')
    assert rule.names() == [Name("x", "a"), Name("y", "a", "t"), Name("z", "a", "t", "b")]
    assert (rule.is_ratio, rule.more) == (True, True)
    assert read_rule('gmean(x["a"] / x["b"]) < 1').is_ratio
    assert not read_rule('x["a"] - x["b"] / 2 < 1').is_ratio


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('ls') > 0",
        "(lambda: 1)() > 0",
        "x.y > 0",
        'x[0]["a"] > 0',
        "x[a] > 0",
        'x["a", "b", "c", "d"] > 0',
        "x[()] > 0",
        'x["a":"b"] > 0',
        "'a' > 0",
        "True > 0",
        "1j > 0",
        '[x["a"]] > 0',
        'sum(x["a"]) > 0',
        "max() > 0",
        'max(x["a"], key=x["b"]) > 0',
        'max(*x["a"]) > 0',
        'abs(x["a"], x["b"]) > 0',
        'x["a"] ** 2 > 0',
        '~x["a"] > 0',
        '(y := x["a"]) > 0',
        'x["a"] if 1 else 2 > 0',
        'x["a"] == 1',
        '1 < x["a"] < 2',
        'x["a"] > 1 and x["b"] > 1',
        'x["a"]',
        'x["a"] >',
        "",
        "(" * 5000,
    ],
)
def test_nothing_else_is_a_rule(text: str) -> None:
    with pytest.raises(RuleError):
        read_rule(text)
