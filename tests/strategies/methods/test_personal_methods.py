"""Ditto, APFL and FedALA: what the server orders. What clients make of it is in tests/learn/rules."""

import pytest
import torch

from polytempo.core.orders import Train
from polytempo.strategies import Strategy, make_strategy
from polytempo.strategies.parts.personal import PersonalRule
from polytempo.strategies.settings import StrategySettings
from polytempo.testing import begun, update, vector

METHODS = ["ditto", "apfl", "fedala"]
PAPERS = {
    "ditto": {"lambda": 1.0},
    "apfl": {"alpha": 0.5, "adaptive": 1.0},
    "fedala": {"eta": 1.0, "layers": 1.0, "percent": 80.0, "threshold": 0.1, "window": 10.0},
}


def first_orders(strategy: Strategy) -> list[Train]:
    """Of two clients."""
    orders = [order for client in range(2) for order in strategy.ready(client, 0.0) or ()]
    return [order for order in orders if isinstance(order, Train)]


@pytest.mark.parametrize("name", METHODS)
def test_orders_name_the_rule_and_its_settings_and_hold_one_model(name: str) -> None:
    strategy = begun(make_strategy(name, {}), vector(0, 0), clients=2)
    order = first_orders(strategy)[0]
    assert order.personal is not None
    assert (order.personal.rule, order.personal.parameters) == (name, PAPERS[name])
    assert order.personal == strategy.personal()
    assert order.models_down == 1
    assert order.objective.plain


@pytest.mark.parametrize("name", METHODS)
def test_the_shared_model_is_that_of_fedavg(name: str) -> None:
    strategy = begun(make_strategy(name, {}), vector(0, 0), clients=2)
    first_orders(strategy)
    for client, weights in enumerate([vector(3, 0), vector(0, 6)]):
        strategy.updated(update(client, 0, vector(0, 0), weights, samples=1 + client), now=1.0)
    assert torch.equal(strategy.model_for(0), vector(1, 4))


@pytest.mark.parametrize("name", METHODS)
def test_the_personal_option_leaves_a_method_with_a_rule_of_its_own_as_it_is(name: str) -> None:
    strategy = StrategySettings(strategy=name, personal=True, clip=2.0).make()
    assert not isinstance(strategy, PersonalRule)
    personal = strategy.personal()
    assert personal is not None
    assert personal.rule == name
    assert isinstance(StrategySettings(strategy="fedavg", personal=True).make(), PersonalRule)


def test_other_methods_order_nothing_personal() -> None:
    assert all(order.personal is None for order in first_orders(begun(make_strategy("fedavg", {}), vector(0), 2)))
