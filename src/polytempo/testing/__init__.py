"""For those who test a method: builders, a small simulator, a scripted clock, and the contract as one call.

``check_strategy(MyStrategy)`` runs every rule that both drivers rely on over one's own class."""

from polytempo.testing.building import Planted, begun, simulator, tiny_dataset, tiny_proxies, update, vector
from polytempo.testing.clock import ScriptedClock, towards_its_own
from polytempo.testing.contract import ContractError, check_strategy

__all__ = [
    "ContractError",
    "Planted",
    "ScriptedClock",
    "begun",
    "check_strategy",
    "simulator",
    "tiny_dataset",
    "tiny_proxies",
    "towards_its_own",
    "update",
    "vector",
]
