"""Polytempo: asynchronous, personalised federated learning, simulated on a virtual clock and served to real clients."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polytempo.api import compare, simulate
    from polytempo.core.errors import StrategyError
    from polytempo.learn.goals import Goal
    from polytempo.learn.metrics import Metric
    from polytempo.report.comparison import Comparison
    from polytempo.report.differences import differences
    from polytempo.report.run import Run
    from polytempo.sweeps.running import sweep
    from polytempo.track.callback import Callback
    from polytempo_client.client import Client
    from polytempo_client.errors import UserError
    from polytempo_client.model.encodings import Encodings
    from polytempo_client.privacy import Privacy
    from polytempo_client.updates.ledger import Ledger
    from polytempo_client.updates.own_rule import judged

__all__ = [
    "Callback",
    "Client",
    "Comparison",
    "Encodings",
    "Goal",
    "Ledger",
    "Metric",
    "Privacy",
    "Run",
    "StrategyError",
    "UserError",
    "compare",
    "differences",
    "judged",
    "simulate",
    "sweep",
]

_HOMES = {
    "Callback": "polytempo.track.callback",
    "Client": "polytempo_client.client",
    "Comparison": "polytempo.report.comparison",
    "Encodings": "polytempo_client.model.encodings",
    "Goal": "polytempo.learn.goals",
    "Ledger": "polytempo_client.updates.ledger",
    "Metric": "polytempo.learn.metrics",
    "Privacy": "polytempo_client.privacy",
    "Run": "polytempo.report.run",
    "StrategyError": "polytempo.core.errors",
    "UserError": "polytempo_client.errors",
    "compare": "polytempo.api",
    "differences": "polytempo.report.differences",
    "judged": "polytempo_client.updates.own_rule",
    "simulate": "polytempo.api",
    "sweep": "polytempo.sweeps.running",
}
"""Each name is imported when it is first used: a client must not wait for, or need, what only the simulator does."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
