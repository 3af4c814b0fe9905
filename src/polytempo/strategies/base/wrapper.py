"""Wrappers: strategies around another strategy. A driver holds the outermost one and need not know."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from polytempo.core.errors import StrategyError
from polytempo.core.events import Update
from polytempo.core.orders import Orders
from polytempo.core.splits import Regrouping, Split
from polytempo.strategies.base.strategy import Setting, Strategy
from polytempo_client.personal.told import Personal

ABOUT = ("travels", "reconstructed", "unmixable", "needs_proxies", "needs_personal", "personal_layers")
"""What a strategy's class says of it; a wrapper says the same as the inner strategy."""


class Wrapper(Strategy):
    """Tells the inner strategy every event and asks it every question. A subclass overrides those that it changes.
    The inner strategy may be a wrapper too, of another class."""

    remembered: ClassVar[tuple[str, ...]] = ()
    """The attributes that are the wrapper's own state. They are saved under the name of its class, beside the state of
    the inner strategy."""

    def __init__(self, inner: Strategy) -> None:
        self.inner: Strategy = inner
        self._refuse_the_same_class_inside()
        for name in ABOUT:
            setattr(self, name, getattr(inner, name))

    def stack(self) -> list[Strategy]:
        return [self, *self.inner.stack()]

    def _refuse_the_same_class_inside(self) -> None:
        own, wrapped = type(self).__name__, self.inner
        while isinstance(wrapped, Wrapper):
            if type(wrapped).__name__ == own:
                raise StrategyError(
                    f"{own} is wrapped around another {own}: both would save their state under this name. Use it once, "
                    "or give the second a class of its own."
                )
            wrapped = wrapped.inner

    def begin(self, setting: Setting) -> None:
        self.setting = setting
        self.inner.begin(setting)
        self.setup()

    # Events.

    def joined(self, client: int, now: float) -> Orders:
        return self.inner.joined(client, now)

    def ready(self, client: int, now: float) -> Orders:
        return self.inner.ready(client, now)

    def updated(self, update: Update, now: float) -> Orders:
        return self.inner.updated(update, now)

    def observed(self, update: Update, now: float) -> Orders:
        return self.inner.observed(update, now)

    def pulled(self, client: int, now: float) -> Orders:
        return self.inner.pulled(client, now)

    def fired(self, key: str, now: float) -> Orders:
        return self.inner.fired(key, now)

    def left(self, client: int, now: float) -> Orders:
        return self.inner.left(client, now)

    def forget(self, client: int) -> None:
        self.inner.forget(client)

    # Questions.

    def model_for(self, client: int) -> Tensor:
        return self.inner.model_for(client)

    @property
    def held_back(self) -> int | None:
        return self.inner.held_back

    def personal(self) -> Personal | None:
        return self.inner.personal()

    @property
    def bad_reports(self) -> int | None:
        return self.inner.bad_reports

    @property
    def tryout_winner(self) -> str | None:
        return self.inner.tryout_winner

    def cluster_of(self, client: int) -> int:
        return self.inner.cluster_of(client)

    def branch_of(self, update: Update) -> int:
        return self.inner.branch_of(update)

    def tau(self, update: Update) -> int:
        return self.inner.tau(update)

    def resolved(self) -> dict[str, Any]:
        return self.inner.resolved()

    def splits(self) -> Sequence[Split]:
        return self.inner.splits()

    def regroupings(self) -> Sequence[Regrouping]:
        return self.inner.regroupings()

    def similarity(self) -> np.ndarray | None:
        return self.inner.similarity()

    def collaboration(self) -> np.ndarray | None:
        return self.inner.collaboration()

    def mixture(self, client: int) -> np.ndarray | None:
        return self.inner.mixture(client)

    def cluster_models(self) -> Sequence[Tensor]:
        return self.inner.cluster_models()

    # State.

    def parameters(self) -> dict[str, Any]:
        return self.inner.parameters()

    def save_state(self) -> dict[str, Any]:
        return self.inner.save_state() | {type(self).__name__: {name: getattr(self, name) for name in self.remembered}}

    def load_state(self, saved: Mapping[str, Any]) -> None:
        own = type(self).__name__
        self.inner.load_state({name: value for name, value in saved.items() if name != own})
        for name in self.remembered:
            setattr(self, name, saved[own][name])


def innermost(strategy: Strategy) -> Strategy:
    """The strategy inside all wrappers."""
    while isinstance(strategy, Wrapper):
        strategy = strategy.inner
    return strategy
