"""EchoPFL with two clusters of two numbers, for tests by hand."""

from typing import Any

from torch import Tensor

from polytempo.core.events import Update
from polytempo.core.orders import Order, Train
from polytempo.strategies import make_strategy
from polytempo.strategies.methods.echopfl import EchoPFL
from polytempo.testing import begun, vector

CLIENTS = 6
BY_L1 = {"preset": "paper", "broadcast": "accumulated", "feedback_from": "sample"}
"""The paper's rules, with a policy of broadcasts that is quick to compute."""


def echopfl(clients: int = CLIENTS, initial: Tensor | None = None, **parameters: Any) -> EchoPFL:
    """After the first two updates, of clients 0 and 1: clusters 0 at (0, 0) and 1 at (8, 0). By the paper's rules but
    for what is given."""
    made = begun(
        make_strategy("echopfl", {**BY_L1, **parameters}), vector(1, 1) if initial is None else initial, clients
    )
    assert isinstance(made, EchoPFL)
    handed_in(made, 0, vector(0, 0))
    handed_in(made, 1, vector(8, 0))
    return made


def handed_in(
    strategy: EchoPFL, client: int, weights: Tensor, answers: dict[str, Any] | None = None, chosen: int | None = None
) -> list[Order]:
    """The orders that follow when a client trains and hands this in."""
    order = next(iter(strategy.ready(client, 0.0)))
    assert isinstance(order, Train)
    handed = Update(client, order.version, order.weights, weights, 1, 1, chosen, answers or {})
    return list(strategy.updated(handed, 0.0))


def fit(feedback: float, *shares: float) -> dict[str, Any]:
    return {"fit": {"feedback": feedback, "soft_labels": list(shares)}}


def model(strategy: EchoPFL, cluster: int) -> list[float]:
    return strategy.clusters.branches[cluster].weights.tolist()
