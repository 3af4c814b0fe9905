"""Questions that are answered from a sample of a client's rows."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from polytempo.core.orders import Train, Work
from polytempo.learn.learner import forward_steps
from polytempo.learn.questions import SAMPLE, Asked, Question
from polytempo.learn.scoring import Scorer


def rows_and_labels(asked: Asked) -> tuple[list[int], list[int]]:
    return asked.rows.tolist(), asked.y.tolist()


def asked(labels: torch.Tensor) -> Asked:
    """Of a client whose rows are every other one of the data."""
    weights = torch.zeros(2)
    rows = np.arange(len(labels)) * 2
    return Asked(Scorer(nn.Linear(1, 1)), torch.zeros(2 * len(labels), 1), labels, rows, weights, weights)


def test_a_sample_is_spread_evenly_and_keeps_its_labels() -> None:
    assert Question(rows_and_labels, most_rows=4)(asked(torch.arange(10))) == ([0, 4, 10, 14], [0, 2, 5, 7])


@pytest.mark.parametrize("rows", [1, 3, 4])
def test_few_rows_are_all_looked_at(rows: int) -> None:
    everything = list(range(0, 2 * rows, 2)), list(range(rows))
    assert Question(rows_and_labels, most_rows=4)(asked(torch.arange(rows))) == everything


@given(rows=st.integers(SAMPLE, 5_000), labels=st.integers(1, 20))
def test_of_rows_sorted_by_label_a_sample_has_each_label_in_its_share(rows: int, labels: int) -> None:
    by_label = torch.arange(rows) * labels // rows
    _, sampled = Question(rows_and_labels, most_rows=SAMPLE)(asked(by_label))
    shares = np.bincount(sampled, minlength=labels) / len(sampled)
    assert np.abs(shares - np.bincount(by_label, minlength=labels) / rows).max() <= 1.5 / SAMPLE


@pytest.mark.parametrize(
    ("names", "rows", "looked_at"),
    [
        (("fit",), SAMPLE // 2, SAMPLE // 2),
        (("fit", "soft-labels"), 30 * SAMPLE, 2 * SAMPLE),
        (("loss-statistics",), 30 * SAMPLE, 30 * SAMPLE),
    ],
)
def test_a_question_costs_the_rows_that_it_looks_at(names: tuple[str, ...], rows: int, looked_at: int) -> None:
    order = Train(0, torch.zeros(1), 0, Work(batch_size=10), questions=names)
    assert forward_steps(order, rows) == pytest.approx(looked_at / 30)
