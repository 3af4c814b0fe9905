"""When a client asks: it holds the model that it was answered with, uses it, and by a policy of its own decides when
to train it and push, which brings the next one. Real and simulated clients share these pure functions, which read no
clock and no file."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from polytempo_client.asking.significance import p_larger, p_other_shares
from polytempo_client.errors import UserError
from polytempo_client.streams import stream

LOOKS = 50
"""After so many looks without a reason a client asks anyway, so that nobody sleeps for ever."""
LONGEST = 1e9
"""Seconds, some 30 years."""
FRESH = 200
"""Rows that a client looks at, at most."""

S = TypeVar("S")
"""Some rows of a client's data, in whatever form it has them."""


@dataclass(frozen=True)
class Asking:
    """A policy: what makes a client ask, and how many seconds pass until it asks or looks."""

    kind: str
    seconds: float
    level: float = 0.0
    """Below which p-value, or beyond which margin of accuracy, a client that watches its data asks."""

    @property
    def watches(self) -> bool:
        """Does it look at its data? Such a client asks at once if it has never trained."""
        return asking_kinds[self.kind].level is not None


class AskingKind(NamedTuple):
    """One way to decide."""

    form: str
    """How it is written on the command line."""
    summary: str
    level: float | None
    """The default of the second number; None if there is no such number."""
    highest: float
    """What the second number must be below."""


@dataclass(frozen=True)
class Watching(Generic[S]):
    """What a client can say of some rows of its data."""

    labels: Callable[[S], np.ndarray]
    losses: Callable[[S], np.ndarray]
    """Of the model that it holds, a number per row."""
    accuracy: Callable[[S], float]
    """Of the same model."""


def check_private(asking: Asking | None) -> None:
    """Refuse, for clients whose updates are blurred, to ask when their data look otherwise."""
    if asking is not None and asking.watches:
        raise UserError(
            f"A client that asks by {asking.kind} looks at its data: the moment of an update would tell something "
            "about them in spite of the noise. Use every:SECONDS or think:SECONDS."
        )


def parse_asking(text: str) -> Asking:
    """The policy for a word of the command line, such as ``think:60`` or ``labels:60:0.01``."""
    name, *numbers = text.split(":")
    if name not in asking_kinds:
        from polytempo_client.imports import unknown  # here, as everywhere: a device waits for what is imported above

        raise UserError(unknown("way to ask", name, asking_kinds))
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
    return Asking(name, seconds, level)


def wait(asking: Asking, seed: int, client: int, count: int) -> float:
    """Seconds from the client's count-th model (or look) until it asks, or until it looks the next time."""
    if asking.kind == "think":
        return float(stream(seed, "ask", client, count).exponential(asking.seconds))
    return asking.seconds


def rows_seen(rows: np.ndarray, seed: int, client: int, count: int, look: int) -> np.ndarray:
    """Which of the rows that it would train on a client sees at its look-th look while it holds its count-th model."""
    if len(rows) <= FRESH:
        return rows
    return np.sort(stream(seed, "look", client, count, look).choice(rows, FRESH, replace=False))


def reason(asking: Asking, watching: Watching[S], before: S | None, now: S, looks: int = 0) -> str | None:
    """Why the client asks, in a few words, or None. ``before`` is of the data that it last trained on, ``now`` of those
    that it has, ``looks`` how often it has looked since it got its model."""
    if not asking.watches:
        return "it is time"
    if before is None:
        return "it has not trained yet"
    has_data = len(watching.labels(before)) > 0 and len(watching.labels(now)) > 0
    found = _reasons[asking.kind](asking.level, watching, before, now) if has_data else ""
    return found or (f"no reason in {looks} looks" if looks >= LOOKS else None)


def _labels(level: float, watching: Watching[S], before: S, now: S) -> str:
    p = p_other_shares(watching.labels(before), watching.labels(now))
    return f"labels, p {p:.2g}" if p < level else ""


def _loss(level: float, watching: Watching[S], before: S, now: S) -> str:
    then, today = watching.losses(before), watching.losses(now)
    p = p_larger(then, today)
    return f"loss {then.mean():.2f} -> {today.mean():.2f}, p {p:.2g}" if p < level else ""


def _accuracy(level: float, watching: Watching[S], before: S, now: S) -> str:
    then, today = watching.accuracy(before), watching.accuracy(now)
    return f"accuracy {then:.2f} -> {today:.2f}" if today < then - level else ""


_reasons: dict[str, Callable[..., str]] = {"labels": _labels, "loss": _loss, "accuracy": _accuracy}


def _require(condition: bool) -> None:
    if not condition:
        raise ValueError


asking_kinds = {
    "think": AskingKind("think:60", "thinks for so many seconds on average (exponential), then asks.", None, 0),
    "every": AskingKind("every:60", "asks so many seconds after it got its model.", None, 0),
    "labels": AskingKind(
        "labels:60 or labels:60:0.01",
        "looks at its data every so many seconds and asks when the shares of the labels are other than in the data it "
        "last trained on: chi-squared test, p below the second number (under 0.5).",
        0.01,
        0.5,
    ),
    "loss": AskingKind(
        "loss:60 or loss:60:0.01",
        "looks every so many seconds and asks when its model's losses are larger than on the data it last trained on: "
        "one-sided Mann-Whitney test, p below the second number (under 0.5).",
        0.01,
        0.5,
    ),
    "accuracy": AskingKind(
        "accuracy:60 or accuracy:60:0.05",
        "looks every so many seconds and asks when its model's accuracy is lower than on the data it last trained on "
        "by more than the second number.",
        0.05,
        math.inf,
    ),
}
