"""Standalone: everyone trains alone, forever. The line that every other method has to beat for every client."""

from dataclasses import replace

from torch import Tensor

from polytempo.core.branch import Branch
from polytempo.core.events import Update
from polytempo.core.orders import Train
from polytempo.strategies.base.strategy import Strategy, strategy


@strategy("standalone")
class Standalone(Strategy):
    """No federation: ``w_i`` is whatever client i last trained, and it goes on from there."""

    travels = False
    unmixable = "every client has a model of its own, so that there are no updates of others to mix with"

    def setup(self) -> None:
        self.own: dict[int, Branch] = {}

    def order_for(self, client: int, now: float) -> Train:
        return self.train(client, self._branch(client))

    def updated(self, update: Update, now: float) -> None:
        self._branch(update.client).replace(update.weights)

    def forget(self, client: int) -> None:
        self.own.pop(client, None)
        super().forget(client)

    def model_for(self, client: int) -> Tensor:
        return self.own[client].weights if client in self.own else self.setting.initial

    def cluster_of(self, client: int) -> int:
        return client

    def tau(self, update: Update) -> int:
        return self._branch(update.client).version - update.version

    def _branch(self, client: int) -> Branch:
        return self.own.setdefault(client, Branch(self.setting.initial))


@strategy("standalone-again")
class StandaloneAgain(Standalone):
    """Standalone on the same rows with other random numbers: batches and dropout come from a stream of their own. What
    it shows as better or worse off than Standalone is chance."""

    def order_for(self, client: int, now: float) -> Train:
        order = super().order_for(client, now)
        return replace(order, work=replace(order.work, stream=1))
