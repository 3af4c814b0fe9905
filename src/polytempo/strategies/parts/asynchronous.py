"""The base of asynchronous methods with one model: an update moves it on arrival, or fills a buffer that does."""

from polytempo.core.events import Update
from polytempo.core.orders import Orders
from polytempo.strategies.base.strategy import Strategy


class Asynchronous(Strategy):
    """A strategy in which nobody waits for an update. One that is held back is not counted anywhere."""

    def observed(self, update: Update, now: float) -> Orders:
        return None
