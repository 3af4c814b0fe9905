"""What every driver demands of a strategy's orders."""

import math

from torch import Tensor

from polytempo.core.errors import StrategyError
from polytempo.core.orders import Order, SetTimer, Train
from polytempo.core.state import pack
from polytempo.core.status import Status
from polytempo.strategies.base.strategy import Strategy
from polytempo.strategies.base.wrapper import innermost


def check_order(order: Order, status: Status | None) -> None:
    """Refuse an order that breaks the contract. ``status`` is what its client is doing, None if there is no such
    client; a timer has no client."""
    if isinstance(order, SetTimer):
        if not math.isfinite(order.at):
            raise StrategyError(f"timer {order.key!r} is set to {order.at}: expected a time in seconds")
        return
    if status is None:
        raise StrategyError(f"{order!r} is for a client that does not exist")
    if isinstance(order, Train) and status != Status.READY:
        doing = status.name.lower()
        raise StrategyError(f"client {order.client} was ordered to train while it is {doing}: it has not said ready")


def check_upload(order: Train, upload: Tensor | None) -> None:
    """An order has to let something move; ``upload`` are the coordinates that it trains, None for all."""
    if upload is not None and not upload.any():
        raise StrategyError(f"client {order.client} was ordered to train with a mask that lets nothing move")


def check_packable(strategy: Strategy) -> None:
    """Refuse a state that cannot be saved, before the first event and not at the first checkpoint."""
    strategy = innermost(strategy)
    for name, value in strategy.save_state().items():
        try:
            pack(value)
        except TypeError as error:
            raise StrategyError(f"the state {name!r} of {type(strategy).__name__} cannot be saved: {error}") from None
