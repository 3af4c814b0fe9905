"""Local differential privacy: an update is clipped and blurred with Gaussian noise before it leaves the client, so that
nobody, the server included, can tell by it which data the client has.

Two data sets of a client are neighbours whenever they are as large as each other: all of the samples may differ. A
clipped update then moves by at most twice the clip, and the noise of one coordinate is ``noise`` times the clip. So k
updates, however the server chooses the tasks by what it has seen, are together mu-Gaussian differentially private with
``mu = 2 sqrt(k) / noise`` (Dong et al., 2022), and epsilon follows exactly, not as a bound (Balle & Wang, 2018)."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from polytempo_client.errors import UserError

Normals = Callable[[int], np.ndarray]
"""So many independent numbers of the standard normal distribution."""

MOST_NOISE = 1e6
HALVINGS = 100
ROUNDING = 1e-12
"""Costs that add up in another order may come to an epsilon that differs by so much."""
FAR_BELOW = -20.0
"""Standard deviations from which on a normal distribution's tail is computed by its series."""


@dataclass(frozen=True)
class Privacy:
    """How an update is blurred: ``clip`` is the longest that it may be, ``noise`` the standard deviation on every
    coordinate in multiples of ``clip``, and ``delta`` the probability that the accounted epsilon does not hold."""

    clip: float
    noise: float
    delta: float = 1e-5

    def __post_init__(self) -> None:
        _check("clip", self.clip, 0 < self.clip < math.inf, "a length above 0")
        _check("noise", self.noise, 0 <= self.noise <= MOST_NOISE, f"0 to {MOST_NOISE:.0e}, times the clip")
        _check("delta", self.delta, 0 < self.delta < 1, "a probability between 0 and 1, such as 1e-5")


def _check(name: str, given: float, fits: bool, expected: str) -> None:
    if not fits:
        raise UserError(f"Privacy: {name} is {given!r}; expected {expected}.")


def parse_privacy(text: str) -> Privacy:
    """The privacy for a word of the command line, ``CLIP:NOISE``."""
    try:
        clip, noise = map(float, text.split(":"))
    except ValueError:
        raise UserError(
            f"Privacy {text!r} is not understood. Expected CLIP:NOISE, for example 1:0.3: updates are clipped to "
            "length 1 and blurred with 0.3 times that on every coordinate."
        ) from None
    return Privacy(clip, noise)


def system_normals(count: int) -> np.ndarray:
    """Noise that nobody can foretell: from the operating system's random bytes, by Box and Muller. A generator with a
    short state could be worked out from the coordinates that a client's data do not move."""
    pairs = -(-count // 2)
    bits = np.frombuffer(os.urandom(16 * pairs), np.uint64).reshape(2, pairs)
    radius, angle = ((bits >> np.uint64(11)) + 1.0) * 2.0**-53  # above 0, up to 1
    length = np.sqrt(-2 * np.log(radius))
    return np.concatenate([length * np.cos(2 * np.pi * angle), length * np.sin(2 * np.pi * angle)])[:count]


def privatised(
    start: np.ndarray,
    weights: np.ndarray,
    privacy: Privacy,
    normals: Normals = system_normals,
    trained: np.ndarray | None = None,
) -> np.ndarray:
    """What of an update may be shown: its delta, buffers included, clipped and blurred. Where only the ``trained``
    coordinates may move, which the server says and not the data, the others stay and need no noise. A training that
    ended in NaN or Inf counts as one that moved nothing: an update that is missing would tell something, too."""
    moving = slice(None) if trained is None else trained
    began = start[moving].astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        delta = weights[moving] - began
        length = math.sqrt((delta * delta).sum())
    delta = delta * min(1.0, privacy.clip / length) if 0 < length < math.inf else np.zeros_like(delta)
    shown = start.copy()
    shown[moving] = began + delta + privacy.noise * privacy.clip * normals(len(delta))
    return shown


def epsilon(updates: int, noise: float, delta: float) -> float:
    """The epsilon, at this delta, of so many updates with the same noise."""
    return epsilon_at(math.sqrt(updates) * mu_of(noise), delta)


def mu_of(noise: float) -> float:
    """What one update with this noise costs. The squares of the costs of several updates add up."""
    return 2 / noise if noise else math.inf


def epsilon_at(mu: float, delta: float) -> float:
    """The smallest epsilon for which mu-Gaussian differential privacy is (epsilon, delta)-differential privacy, from
    above: of the two ends of the last interval it is the larger."""
    if mu in (0, math.inf):
        return mu
    wanted = math.log(delta)
    if _log_delta(0.0, mu) <= wanted:
        return 0.0
    low, high = 0.0, mu * mu / 2 + mu * math.sqrt(-2 * wanted)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if _log_delta(middle, mu) <= wanted else (middle, high)
    return high


def _log_delta(epsilon: float, mu: float) -> float:
    """The logarithm of ``Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu)``."""
    first = log_normal_cdf(mu / 2 - epsilon / mu)
    second = log_normal_cdf(-mu / 2 - epsilon / mu) + epsilon
    return first + math.log(-math.expm1(second - first)) if second < first else -math.inf


def log_normal_cdf(x: float) -> float:
    """The logarithm of ``Phi(x)``, also where Phi underflows: there by the asymptotic series of its tail."""
    if x > 0:
        return math.log1p(-math.erfc(x / math.sqrt(2)) / 2)
    if x > FAR_BELOW:
        return math.log(math.erfc(-x / math.sqrt(2)) / 2)
    term = series = 1.0
    for k in range(1, 2 * int(-FAR_BELOW), 2):  # long before the terms grow again they are too small to count
        term *= -k / (x * x)
        series += term
    return math.log(series) - x * x / 2 - math.log(-x) - math.log(2 * math.pi) / 2


def updates_within(limit: float, noise: float, delta: float, spent: float = 0.0) -> int:
    """How many updates with this noise stay within an epsilon of ``limit``, if updates before them had a ``spent``
    mu."""
    _check("epsilon", limit, 0 <= limit < math.inf, "0 or more")

    def fits(updates: int) -> bool:
        reached = epsilon_at(math.hypot(spent, math.sqrt(updates) * mu_of(noise)), delta)
        return reached <= limit * (1 + ROUNDING)

    if not fits(1):
        return 0
    fitting, beyond = 1, 2
    while fits(beyond):
        fitting, beyond = beyond, 2 * beyond
    while beyond - fitting > 1:
        middle = (fitting + beyond) // 2
        fitting, beyond = (middle, beyond) if fits(middle) else (fitting, middle)
    return fitting
