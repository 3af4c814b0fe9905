"""When a client asks: policies in words, and what counts as a reason."""

import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import chi2, chi2_contingency, mannwhitneyu
from torch import Tensor, nn

from polytempo.core.errors import UserError
from polytempo.learn.asking import Sample, sampled, watching
from polytempo.learn.flat import initial_vector
from polytempo.learn.scoring import Scorer
from polytempo_client.asking.policies import FRESH, LOOKS, Asking, asking_kinds, parse_asking, reason, wait
from polytempo_client.asking.significance import chi_squared_tail, p_larger, p_other_shares

WATCHING = ("labels", "loss", "accuracy")
LABELS = st.lists(st.integers(0, 4), max_size=30).map(lambda labels: np.array(labels, np.int64))
LOSSES = st.lists(st.floats(width=32), max_size=30).map(np.array)


@pytest.fixture(autouse=True)
def _without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture
def echo() -> tuple[Scorer, Tensor]:
    """A model whose outputs are its inputs, three of them."""
    module = nn.Linear(3, 3)
    with torch.no_grad():
        module.weight.copy_(torch.eye(3))
        module.bias.zero_()
    return Scorer(module), initial_vector(module)


def data(labels: list[int], seen_as: list[int] | None = None) -> Sample:
    """Samples with these labels that the echoing model takes for others, if given."""
    x = 4 * torch.eye(3)[seen_as or labels] + 0.1 * torch.rand(
        len(labels), 3, generator=torch.Generator().manual_seed(0)
    )
    return Sample(x.reshape(-1, 3), torch.tensor(labels, dtype=torch.int64), np.arange(len(labels)))


def why(asking: Asking, held: tuple[Scorer, Tensor], before: Sample | None, now: Sample, looks: int = 0) -> str | None:
    return reason(asking, watching(*held), before, now, looks)


# In words.


def test_a_policy_is_read_from_words() -> None:
    assert parse_asking("think:60") == Asking("think", 60.0)
    assert parse_asking("every:0.5") == Asking("every", 0.5)
    assert parse_asking("labels:60:0.001") == Asking("labels", 60.0, 0.001)
    assert [parse_asking(f"{kind}:9").level for kind in WATCHING] == [0.01, 0.01, 0.05]
    assert [kind for kind in asking_kinds if parse_asking(f"{kind}:9").watches] == list(WATCHING)


def test_every_form_that_is_listed_is_understood() -> None:
    for name, kind in asking_kinds.items():
        assert {parse_asking(form).kind for form in kind.form.split(" or ")} == {name}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("evry:60", "Did you mean 'every'"),
        ("think", "Expected think:60"),
        ("think:0", "Expected think:60"),
        ("think:nan", "Expected think:60"),
        ("every:inf", "Expected every:60"),
        ("every:60:0.1", "Expected every:60"),
        ("labels:60:0.6", "Expected labels:60 or labels:60:0.01"),
        ("loss:60:0", "Expected loss:60"),
        ("accuracy:60:0.1:2", "Expected accuracy:60"),
        ("", "Known: think, every, labels, loss, accuracy"),
    ],
)
def test_other_words_are_an_error_that_says_what_was_expected(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        parse_asking(text)


# How long.


def test_thinking_takes_as_long_as_it_says_on_average_and_is_a_function_of_client_and_count() -> None:
    asking = parse_asking("think:60")
    waits = [wait(asking, 0, client, count) for client in range(20) for count in range(50)]
    assert 54 < np.mean(waits) < 66
    assert len(set(waits)) == 1000
    assert wait(asking, 0, 3, 7) == waits[157]


@pytest.mark.parametrize("kind", ["every", *WATCHING])
def test_the_others_wait_so_many_seconds(kind: str) -> None:
    assert wait(parse_asking(f"{kind}:5"), 0, 1, 2) == 5


# What it looks at.


def test_a_look_takes_some_of_the_clients_rows_with_their_labels() -> None:
    rows, labels = np.arange(100, 1000), torch.arange(1000) % 7
    one, other = (sampled(torch.zeros(1000, 1), labels, rows, 0, 3, 0, look) for look in (1, 2))
    assert len(one.rows) == len(set(one.rows)) == FRESH
    assert set(one.rows) <= set(rows)
    assert one.y.tolist() == [row % 7 for row in one.rows]
    assert set(one.rows) != set(other.rows)


def test_few_rows_are_all_looked_at() -> None:
    assert sampled(torch.zeros(9, 1), torch.zeros(9), np.array([1, 4]), 0, 0, 0, 0).rows.tolist() == [1, 4]


# The tests.


def test_the_chi_squared_test_is_that_of_the_textbook() -> None:
    one, other = (np.repeat([0, 1], counts) for counts in ((10, 20), (20, 10)))
    assert p_other_shares(one, other) == pytest.approx(0.009823, rel=1e-3)  # chi-squared 20/3, one degree of freedom


@given(LABELS, LABELS)
def test_the_test_of_label_shares_is_scipys(one: np.ndarray, other: np.ndarray) -> None:
    labels = np.union1d(one, other)
    assume(len(labels) > 1 and len(one) and len(other))
    counts = [[np.count_nonzero(part == label) for label in labels] for part in (one, other)]
    assert p_other_shares(one, other) == pytest.approx(chi2_contingency(counts, correction=False).pvalue, rel=1e-9)


@pytest.mark.parametrize("freedom", [1, 2, 3, 10, 99, 1000, 5001])
def test_the_tail_of_chi_squared_is_scipys(freedom: int) -> None:
    for x in (0.0, 0.01, 0.5 * freedom, freedom, 1.5 * freedom, 4.0 * freedom, 1e4):
        assert chi_squared_tail(x, freedom) == pytest.approx(chi2.sf(x, freedom), rel=1e-9, abs=1e-300)


@given(LOSSES, LOSSES)
def test_the_test_of_losses_is_scipys(before: np.ndarray, now: np.ndarray) -> None:
    values = np.nan_to_num(np.concatenate([before, now]), nan=np.inf, posinf=np.inf, neginf=-np.inf)
    assume(len(before) and len(now) and len(set(values)) > 1)
    parts = values[len(before) :], values[: len(before)]
    expected = mannwhitneyu(*parts, alternative="greater", method="asymptotic").pvalue
    assert p_larger(before, now) == pytest.approx(expected, rel=1e-9)


@given(LABELS, LABELS)
def test_label_shares_differ_both_ways_alike(one: np.ndarray, other: np.ndarray) -> None:
    assert p_other_shares(one, other) == pytest.approx(p_other_shares(other, one))
    assert 0 <= p_other_shares(one, other) <= 1


@given(LABELS, LOSSES)
def test_identical_samples_raise_no_alarm(labels: np.ndarray, losses: np.ndarray) -> None:
    assert p_other_shares(labels, labels) == pytest.approx(1)
    assert p_larger(losses, losses) >= 0.5


@given(LOSSES, LOSSES)
def test_any_losses_can_be_compared(one: np.ndarray, other: np.ndarray) -> None:
    assert 0 <= p_larger(one, other) <= 1


def test_losses_count_only_if_they_grew() -> None:
    small, large = np.linspace(0, 1, 30), np.linspace(0.5, 1.5, 30)
    assert p_larger(small, large) < 0.01 < 0.99 < p_larger(large, small)
    assert p_larger(np.zeros(30), np.ones(30)) < 0.01


def test_a_loss_that_is_no_number_is_as_bad_as_can_be() -> None:
    assert p_larger(np.linspace(0, 1, 30), np.full(30, np.nan)) < 0.01
    assert p_larger(np.full(30, np.nan), np.full(30, np.nan)) == 1


@pytest.mark.parametrize("other", [[], [2, 2, 2]])
def test_one_class_or_no_data_are_no_reason(other: list[int]) -> None:
    assert p_other_shares(np.array([2, 2]), np.array(other, np.int64)) == 1


# Reasons.


def test_other_label_shares_are_a_reason_and_the_same_are_not(echo: tuple[Scorer, Tensor]) -> None:
    asking = parse_asking("labels:60")
    before = data([0, 1, 2] * 10)
    assert why(asking, echo, before, data([2, 1, 0] * 10)) is None
    assert str(why(asking, echo, before, data([0] * 28 + [1, 2]))).startswith("labels, p ")


def test_a_model_that_does_worse_is_a_reason_and_one_that_does_better_is_not(echo: tuple[Scorer, Tensor]) -> None:
    good, bad = data([0, 1, 2] * 10), data([0, 1, 2] * 10, [1, 2, 0] * 10)
    assert why(parse_asking("labels:60"), echo, good, bad) is None
    for words, said in (("loss:60", "loss 0.0"), ("accuracy:60", "accuracy 1.00 -> 0.00")):
        assert str(why(parse_asking(words), echo, good, bad)).startswith(said)
        assert why(parse_asking(words), echo, bad, good) is None
        assert why(parse_asking(words), echo, good, good) is None


def test_a_loss_of_accuracy_within_the_margin_is_no_reason(echo: tuple[Scorer, Tensor]) -> None:
    before, now = data([0] * 10), data([0] * 10, [0] * 9 + [1])
    assert why(parse_asking("accuracy:60:0.15"), echo, before, now) is None
    assert why(parse_asking("accuracy:60:0.05"), echo, before, now) == "accuracy 1.00 -> 0.90"


@pytest.mark.parametrize("kind", WATCHING)
def test_who_has_not_trained_yet_asks_and_so_does_who_never_finds_a_reason(
    kind: str, echo: tuple[Scorer, Tensor]
) -> None:
    asking, same = parse_asking(f"{kind}:60"), data([0, 1, 2])
    assert why(asking, echo, None, same) == "it has not trained yet"
    assert why(asking, echo, same, same, LOOKS - 1) is None
    assert why(asking, echo, same, same, LOOKS) == "no reason in 50 looks"


@pytest.mark.parametrize("kind", WATCHING)
def test_no_data_one_class_and_a_broken_model_are_no_reason(kind: str, echo: tuple[Scorer, Tensor]) -> None:
    asking, (scorer, model) = parse_asking(f"{kind}:60"), echo
    nothing, one_class = data([]), data([1] * 5)
    assert why(asking, (scorer, model), nothing, one_class) is None
    assert why(asking, (scorer, model), one_class, nothing) is None
    assert why(asking, (scorer, model), one_class, one_class) is None
    assert why(asking, (scorer, torch.full_like(model, torch.nan)), data([0, 1] * 9), data([1, 0] * 9)) is None
    assert why(asking, (scorer, torch.zeros_like(model)), data([0, 1] * 9), data([1, 0] * 9)) is None


def test_a_client_that_watches_nothing_asks_when_it_is_time(echo: tuple[Scorer, Tensor]) -> None:
    assert why(parse_asking("every:60"), echo, None, data([0])) == "it is time"
