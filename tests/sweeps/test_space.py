"""What a sweep may vary, and what is wrong with the rest."""

import numpy as np
import pytest

from polytempo.core.errors import UserError
from polytempo.sim.experiment import Experiment, make_experiment
from polytempo.sweeps.space import (
    Range,
    as_words,
    checked_grid,
    checked_ranges,
    combinations,
    experiment_with,
    parse_grid,
    parse_ranges,
)


def base(strategy: str = "fedasync", **settings: object) -> Experiment:
    return make_experiment(strategy=strategy, **settings)


def test_a_grid_is_read_as_numbers_where_it_holds_numbers() -> None:
    words = ["mixing=0.1,0.3", "epochs=1,2", "optimizer=sgd,adam", 'partition=["groups:0.2,0.8","iid"]']
    assert parse_grid(words) == {
        "mixing": [0.1, 0.3],
        "epochs": [1, 2],
        "optimizer": ["sgd", "adam"],
        "partition": ["groups:0.2,0.8", "iid"],
    }


def test_a_range_may_be_whole_or_logarithmic() -> None:
    found = parse_ranges(["lr=0.001:0.1:log", "epochs=1:5"])
    assert found == {"lr": Range(0.001, 0.1, log=True), "epochs": Range(1, 5)}
    assert [of.whole for of in found.values()] == [False, True]


@pytest.mark.parametrize("word", ["mixing", "=1,2", "mixing="])
def test_a_grid_that_is_not_understood_says_what_was_expected(word: str) -> None:
    with pytest.raises(UserError, match="Expected NAME=VALUE,VALUE"):
        parse_grid([word])


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("lr=0.1", "Expected NAME=LOW:HIGH"),
        ("lr=0.1:1:linear", "Expected NAME=LOW:HIGH"),
        ("lr=1:0.1", "a lower number first"),
        ("lr=0:1:log", "above 0"),
        ("lr=low:1", "two finite numbers"),
        ("lr=0:NaN", "two finite numbers"),
    ],
)
def test_a_range_that_is_not_understood_says_what_was_expected(word: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_ranges([word])


def test_names_are_those_of_settings_and_of_the_strategys_parameters() -> None:
    found = checked_grid(base(), {"mixing": [0.1], "batch-size": [5], "parameters.staleness": ["constant"]})
    assert list(found) == ["parameters.mixing", "batch_size", "parameters.staleness"]
    assert as_words({"parameters.mixing": 0.1, "batch_size": 5}) == "mixing 0.1, batch_size 5"


def test_where_a_setting_and_a_parameter_share_a_name_the_plain_one_is_the_setting() -> None:
    found = checked_grid(base("casa"), {"patience": [3], "parameters.patience": [4.0]})
    assert list(found) == ["patience", "parameters.patience"]


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"Unknown setting, or parameter of fedasync, 'mixin'\. Did you mean 'mixing'"):
        checked_grid(base(), {"mixin": [0.1]})


@pytest.mark.parametrize("name", ["seed", "strategy", "workers", "validation_share", "validation-share"])
def test_some_settings_are_not_varied(name: str) -> None:
    with pytest.raises(UserError, match="A sweep does not vary"):
        checked_grid(base(), {name: [1]})


@pytest.mark.parametrize(
    ("values", "message"),
    [([], "no values"), ([0.1, 0.2, 0.1], "0.1 twice"), ("0.1", "Expected a list of values"), (0.1, "Expected a list")],
)
def test_a_grid_needs_different_values(values: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        checked_grid(base(), {"lr": values})  # type: ignore[dict-item]


def test_numbers_of_numpy_are_plain_ones() -> None:
    (values,) = checked_grid(base(), {"lr": np.array([0.1, 0.2])}).values()
    assert [type(value) for value in values] == [float, float]


@pytest.mark.parametrize("given", [0.1, (0.1,), (0.1, 0.2, "linear"), (0.1, 0.2, "log", 1)])
def test_a_range_in_python_is_a_pair(given: object) -> None:
    with pytest.raises(UserError, match="The range of lr"):
        checked_ranges(base(), {"lr": given})


def test_every_combination_comes_once_and_the_last_name_varies_fastest() -> None:
    assert combinations({"a": [1, 2], "b": [3, 4]}) == [
        {"a": 1, "b": 3},
        {"a": 1, "b": 4},
        {"a": 2, "b": 3},
        {"a": 2, "b": 4},
    ]


def test_values_go_into_the_experiment_beside_what_was_given() -> None:
    given = base(lr=0.2, steps=3, parameters={"staleness": "constant"})
    made = experiment_with(given, {"parameters.mixing": 0.3, "epochs": 2}, 7)
    assert (made.lr, made.seed, made.epochs, made.steps) == (0.2, 7, 2, None)
    assert made.parameters == {"staleness": "constant", "mixing": 0.3}


@pytest.mark.parametrize("assigned", [{"lr": -1}, {"lr": "fast"}, {"parameters.mixing": 7}])
def test_a_bad_value_is_refused_before_anything_runs(assigned: dict[str, object]) -> None:
    with pytest.raises(UserError, match=r"With (lr|mixing)"):
        experiment_with(base(), assigned, 0)
