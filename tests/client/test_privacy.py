"""Clip, noise, and what they come to: epsilon against what others compute in another way."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import log_ndtr
from scipy.stats import kstest, norm

from polytempo.core.errors import UserError
from polytempo_client.privacy import (
    Privacy,
    epsilon,
    log_normal_cdf,
    parse_privacy,
    privatised,
    system_normals,
    updates_within,
)
from polytempo_client.streams import stream

NOISES = st.floats(0.05, 100)
DELTAS = st.floats(1e-12, 0.1)
START = np.linspace(-2, 2, 1000, dtype=np.float32)


# Epsilon.


@given(st.floats(-1e6, 37))
def test_the_logarithm_of_the_normal_distribution_holds_far_out_too(x: float) -> None:
    assert log_normal_cdf(x) == pytest.approx(float(log_ndtr(x)), rel=1e-13)


def delta_by_integration(updates: int, noise: float, epsilon: float) -> float:
    """How much more often, beyond a factor of exp(epsilon), one data set shows what it shows than another whose updates
    lie as far away as they can: the difference of two normal densities, integrated where it is positive."""
    apart = 2 * math.sqrt(updates) / noise
    from_here = apart / 2 + epsilon / apart  # where exp(epsilon) times the other density is smaller
    excess, _ = quad(
        lambda x: norm.pdf(x - apart) - math.exp(epsilon) * norm.pdf(x), from_here, apart + 40, epsabs=0, limit=500
    )
    return excess


@pytest.mark.parametrize(
    ("updates", "noise", "delta"), [(1, 2.0, 1e-5), (1, 0.5, 1e-6), (10, 4.0, 1e-5), (100, 30.0, 1e-3)]
)
def test_epsilon_has_its_delta_by_numeric_integration(updates: int, noise: float, delta: float) -> None:
    assert delta_by_integration(updates, noise, epsilon(updates, noise, delta)) == pytest.approx(delta, rel=1e-5)


def test_the_privacy_losses_of_single_updates_add_up_to_that_of_all() -> None:
    updates, noise, delta = 8, 6.0, 1e-4
    mu, width = 2 / noise, 0.002
    losses = np.arange(-4, 4, width)
    once = norm.pdf(losses, mu**2 / 2, mu) * width
    density = once
    for _ in range(updates - 1):
        density = np.convolve(density, once)
    totals = updates * losses[0] + width * np.arange(len(density))
    value = epsilon(updates, noise, delta)
    excess = (density * np.maximum(1 - np.exp(value - totals), 0)).sum()
    assert excess == pytest.approx(delta, rel=1e-3)


def test_known_values_of_the_analytic_gaussian_mechanism() -> None:
    # Balle and Wang's calibration for epsilon 1, delta 1e-5, sensitivity 1; ours is 2 per clip.
    assert epsilon(1, 2 * 3.730632, 1e-5) == pytest.approx(1.0, abs=1e-6)
    # Without any epsilon, delta is the distance of two normal distributions in total variation.
    assert epsilon(1, 2.0, 2 * norm.cdf(0.5) - 1 + 1e-9) == 0.0


@given(st.integers(1, 10**6), NOISES, DELTAS)
def test_epsilon_grows_with_updates_and_falls_with_noise_and_delta(updates: int, noise: float, delta: float) -> None:
    value = epsilon(updates, noise, delta)
    assert 0 <= value < math.inf
    assert epsilon(updates + 1, noise, delta) >= value
    assert epsilon(updates, 1.1 * noise, delta) <= value
    assert epsilon(updates, noise, 1.1 * delta) <= value


@settings(max_examples=50)
@given(st.floats(0.01, 1000), NOISES, DELTAS)
def test_the_updates_within_a_limit_are_as_many_as_can_be(limit: float, noise: float, delta: float) -> None:
    updates = updates_within(limit, noise, delta)
    assert epsilon(updates, noise, delta) <= limit < epsilon(updates + 1, noise, delta)


def test_updates_before_count_against_the_limit() -> None:
    allowed = updates_within(8.0, 10.0, 1e-5)
    assert allowed > 10
    assert updates_within(8.0, 10.0, 1e-5, spent=2 * math.sqrt(4) / 10) == allowed - 4
    assert updates_within(8.0, 10.0, 1e-5, spent=100.0) == 0


def test_without_noise_there_is_no_epsilon() -> None:
    assert epsilon(1, 0.0, 1e-5) == math.inf
    assert epsilon(0, 1.0, 1e-5) == 0


# Clip and noise.


def drawn(seed: int) -> Any:
    return stream(seed, "test").standard_normal


@pytest.mark.parametrize("by", [0.001, 0.5, 1e30])
def test_an_update_is_as_long_as_the_clip_at_most_and_keeps_its_direction(by: float) -> None:
    delta = (by * np.sin(np.arange(1000.0))).astype(np.float32)
    shown = privatised(np.zeros(1000, np.float32), delta, Privacy(0.3, 0.0))
    length = float(np.linalg.norm(delta.astype(np.float64)))
    assert float(np.linalg.norm(shown)) == pytest.approx(min(length, 0.3), rel=1e-5)
    assert np.allclose(shown / np.linalg.norm(shown), delta / length, atol=1e-6)


@pytest.mark.parametrize("normals", [system_normals, drawn(3)])
def test_the_noise_is_normal_with_the_given_deviation_on_every_coordinate(normals: Any) -> None:
    start = np.linspace(-1, 1, 100_000, dtype=np.float32)
    noise = (privatised(start, start + 5, Privacy(2.0, 1.5), normals) - start).astype(np.float64)
    assert noise.std() == pytest.approx(3.0, rel=0.02)
    assert kstest(noise / 3.0, "norm").pvalue > 1e-6


@pytest.mark.parametrize("count", [0, 1, 2, 1001])
def test_the_systems_noise_comes_in_any_number_and_never_again(count: int) -> None:
    one, other = system_normals(count), system_normals(count)
    assert len(one) == count
    assert not np.isin(one, other).any()


def test_only_what_the_task_trains_is_blurred() -> None:
    trained = np.arange(1000) % 3 == 0
    shown = privatised(START, np.where(trained, START + 1, START), Privacy(1.0, 1.0), drawn(0), trained)
    assert np.array_equal(shown[~trained], START[~trained])
    assert (shown[trained] != START[trained]).all()


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_training_that_diverged_looks_like_one_that_moved_nothing(wrong: float) -> None:
    diverged = START.copy()
    diverged[7] = wrong
    shown, still = (privatised(START, weights, Privacy(1.0, 1.0), drawn(1)) for weights in (diverged, START))
    assert np.array_equal(shown, still)


# What is wrong.


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"clip": 0.0, "noise": 1.0}, "clip is 0.0; expected a length above 0"),
        ({"clip": math.inf, "noise": 1.0}, "clip"),
        ({"clip": 1.0, "noise": -1.0}, "noise is -1.0; expected 0 to"),
        ({"clip": 1.0, "noise": math.nan}, "noise"),
        ({"clip": 1.0, "noise": 1.0, "delta": 0.0}, "delta is 0.0; expected a probability"),
        ({"clip": 1.0, "noise": 1.0, "delta": 1.0}, "delta"),
    ],
)
def test_bad_parameters_are_errors_in_plain_words(given: dict[str, float], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Privacy(**given)


@pytest.mark.parametrize("text", ["", "1", "1:2:3", "one:two"])
def test_a_word_that_is_no_privacy_is_an_error_that_says_the_form(text: str) -> None:
    with pytest.raises(UserError, match="CLIP:NOISE"):
        parse_privacy(text)


def test_a_limit_that_is_no_number_is_an_error() -> None:
    with pytest.raises(UserError, match="epsilon is inf"):
        updates_within(math.inf, 1.0, 1e-5)
