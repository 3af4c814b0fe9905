"""When a client asks: it holds the model that it was answered with, uses it, and by a policy of its own decides when
to train it and push, which brings the next one. Shared by the simulator and by ``polytempo join``: pure functions that
read no clock and no file.

The tests for change are scipy's, which is here anyway. The detectors of river, the library for data that change, watch
one number at a time and bring pandas along; a client that looks at its data every minute has two samples to compare.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

import numpy as np
from torch import Tensor

from polytempo.core.errors import UserError
from polytempo.core.registry import Registry
from polytempo.core.streams import stream
from polytempo.learn.scoring import Scorer

LOOKS = 50
"""After so many looks without a reason a client asks anyway, so that nobody sleeps for ever."""
LONGEST = 1e9
"""Seconds, some 30 years."""
FRESH = 200
"""Rows that a client looks at, at most."""

Kind = Literal["think", "every", "labels", "loss", "accuracy"]


@dataclass(frozen=True)
class Asking:
    """A policy: what makes a client ask, and how many seconds pass until it asks or looks."""

    kind: Kind
    seconds: float
    level: float = 0.0
    """Below which p-value, or beyond which margin of accuracy, a client that watches its data asks."""

    @property
    def watches(self) -> bool:
        """Does it look at its data? Such a client asks at once if it has never trained."""
        return asking_kinds[self.kind].level is not None


def check_private(asking: Asking | None) -> None:
    """Refuse, for clients whose updates are blurred, to ask when their data look otherwise."""
    if asking is not None and asking.watches:
        raise UserError(
            f"A client that asks by {asking.kind} looks at its data: the moment of an update would tell something "
            "about them in spite of the noise. Use every:SECONDS or think:SECONDS."
        )


class AskingKind(NamedTuple):
    """One way to decide."""

    form: str
    """How it is written on the command line."""
    summary: str
    level: float | None
    """The default of the second number; None if there is no such number."""
    highest: float
    """What the second number must be below."""


class Sample(NamedTuple):
    """Some rows of a client's data."""

    x: Tensor
    """All inputs; ``rows`` says which."""
    y: Tensor
    """The labels of these rows."""
    rows: np.ndarray


def parse_asking(text: str) -> Asking:
    """The policy for a word of the command line, such as ``think:60`` or ``labels:60:0.01``."""
    name, *numbers = text.split(":")
    kind = asking_kinds[name]
    try:
        seconds, *levels = map(float, numbers)
        _require(0 < seconds <= LONGEST and len(levels) <= (kind.level is not None))
        level = levels[0] if levels else kind.level or 0.0
        _require(not levels or 0 < level < kind.highest)
    except ValueError:
        raise UserError(
            f"Asking {text!r} is not understood. Expected {kind.form}, seconds above 0 and up to {LONGEST:.0e}: the "
            f"client {kind.summary}"
        ) from None
    return Asking(cast(Kind, name), seconds, level)


def wait(asking: Asking, seed: int, client: int, count: int) -> float:
    """Seconds from the client's count-th model (or look) until it asks, or until it looks the next time."""
    if asking.kind == "think":
        return float(stream(seed, "ask", client, count).exponential(asking.seconds))
    return asking.seconds


def sampled(x: Tensor, labels: Tensor, rows: np.ndarray, seed: int, client: int, count: int, look: int) -> Sample:
    """What the client sees at its look-th look while it holds its count-th model: at most ``FRESH`` of the rows that it
    would train on. ``x`` and ``labels`` are those of the whole data set."""
    if len(rows) > FRESH:
        rows = np.sort(stream(seed, "look", client, count, look).choice(rows, FRESH, replace=False))
    return Sample(x, labels[rows], rows)


def reason(
    asking: Asking, scorer: Scorer, model: Tensor, before: Sample | None, now: Sample, looks: int = 0
) -> str | None:
    """Why the client asks, in a few words, or None: ``before`` is of the data that it last trained on, ``now`` of
    those that it has, ``model`` the one that it holds, ``looks`` how often it has looked since it got it."""
    if not asking.watches:
        return "it is time"
    if before is None:
        return "it has not trained yet"
    has_data = len(before.rows) > 0 and len(now.rows) > 0
    found = _reasons[asking.kind](asking.level, scorer, model, before, now) if has_data else ""
    return found or (f"no reason in {looks} looks" if looks >= LOOKS else None)


def _labels(level: float, scorer: Scorer, model: Tensor, before: Sample, now: Sample) -> str:
    p = p_other_shares(before.y.numpy(), now.y.numpy())
    return f"labels, p {p:.2g}" if p < level else ""


def _loss(level: float, scorer: Scorer, model: Tensor, before: Sample, now: Sample) -> str:
    then, today = (scorer.losses(model, *sample).double().numpy() for sample in (before, now))
    p = p_larger(then, today)
    return f"loss {then.mean():.2f} -> {today.mean():.2f}, p {p:.2g}" if p < level else ""


def _accuracy(level: float, scorer: Scorer, model: Tensor, before: Sample, now: Sample) -> str:
    then, today = (float(scorer.metric(model, *sample).mean()) for sample in (before, now))
    return f"accuracy {then:.2f} -> {today:.2f}" if today < then - level else ""


_reasons: dict[str, Callable[[float, Scorer, Tensor, Sample, Sample], str]] = {
    "labels": _labels,
    "loss": _loss,
    "accuracy": _accuracy,
}


def p_other_shares(one: np.ndarray, other: np.ndarray) -> float:
    """Chi-squared test of two samples of labels: the probability of shares that differ so much by chance."""
    from scipy.stats import chi2_contingency  # here, because it takes long to import

    labels, places = np.unique(np.concatenate([one, other]), return_inverse=True)
    if len(labels) < 2 or not len(one) or not len(other):
        return 1.0
    parts = places[: len(one)], places[len(one) :]
    counts = np.array([np.bincount(part, minlength=len(labels)) for part in parts])
    return float(chi2_contingency(counts, correction=False).pvalue)


def p_larger(before: np.ndarray, now: np.ndarray) -> float:
    """One-sided Mann-Whitney test: the probability that ``now`` is so much larger by chance. NaN is as large as can
    be."""
    from scipy.stats import mannwhitneyu

    values = np.concatenate([before, now])
    values[np.isnan(values)] = np.inf
    if not len(before) or not len(now) or (values == values[0]).all():
        return 1.0
    parts = values[len(before) :], values[: len(before)]
    return float(mannwhitneyu(*parts, alternative="greater", method="asymptotic").pvalue)


def _require(condition: bool) -> None:
    if not condition:
        raise ValueError


asking_kinds: Registry[AskingKind] = Registry("way to ask")
asking_kinds.add(
    "think",
    AskingKind("think:60", "thinks for so many seconds on average (exponential), then asks.", None, 0),
)
asking_kinds.add("every", AskingKind("every:60", "asks so many seconds after it got its model.", None, 0))
asking_kinds.add(
    "labels",
    AskingKind(
        "labels:60 or labels:60:0.01",
        "looks at its data every so many seconds and asks when the shares of the labels are other than in the data it "
        "last trained on: chi-squared test, p below the second number (under 0.5).",
        0.01,
        0.5,
    ),
)
asking_kinds.add(
    "loss",
    AskingKind(
        "loss:60 or loss:60:0.01",
        "looks every so many seconds and asks when its model's losses are larger than on the data it last trained on: "
        "one-sided Mann-Whitney test, p below the second number (under 0.5).",
        0.01,
        0.5,
    ),
)
asking_kinds.add(
    "accuracy",
    AskingKind(
        "accuracy:60 or accuracy:60:0.05",
        "looks every so many seconds and asks when its model's accuracy is lower than on the data it last trained on "
        "by more than the second number.",
        0.05,
        math.inf,
    ),
)
