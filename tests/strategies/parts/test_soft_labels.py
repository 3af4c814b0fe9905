"""Soft labels: which answers are some, their mean, and how unlike two are."""

import math

import numpy as np
import pytest

from polytempo.strategies.parts.soft_labels import (
    as_soft_label,
    comparable,
    divergence,
    divergences,
    mean_soft_label,
)

P, Q = np.array([0.5, 0.5]), np.array([0.9, 0.1])


def test_the_divergence_is_kl_both_ways():
    both_ways = (P * np.log(P / Q)).sum() + (Q * np.log(Q / P)).sum()
    assert divergence(P, Q) == pytest.approx(both_ways, rel=1e-4)
    assert divergences([P, Q]) == pytest.approx(np.array([[0, both_ways], [both_ways, 0]]), rel=1e-4)


def test_a_class_that_somebody_never_sees_makes_nobody_infinitely_unlike():
    assert math.isfinite(divergence(np.array([1.0, 0.0]), np.array([0.0, 1.0])))


def test_what_is_unknown_or_about_other_classes_is_infinitely_unlike():
    assert divergence(P, None) == divergence(None, P) == divergence(P, np.ones(3) / 3) == math.inf


def test_answers_about_another_number_of_classes_than_most_are_left_out():
    labels = {4: np.array([1.0, 0.0]), 2: np.ones(3) / 3, 0: np.array([0.0, 1.0])}
    assert comparable(labels) == [0, 4]
    mean = mean_soft_label(labels)
    assert mean is not None
    assert mean.tolist() == [0.5, 0.5]
    assert mean_soft_label({}) is None


@pytest.mark.parametrize(
    "answer",
    [
        *(None, 3.0, "ab", [], [0.5], [0.9, 0.9], [1.5, -0.5], [math.nan, 1], [math.inf, 0], [[0.5, 0.5]]),
        *([10**400, 0], [[0.5], 0.5], {"a": 1}, [1e308, 1e308], [1e-6] * 1_000_000),
    ],
)
def test_an_answer_that_is_no_shares_is_none(answer):
    assert as_soft_label(answer) is None


def test_shares_may_be_rounded():
    assert as_soft_label([0.5, 0.5004]) is not None
