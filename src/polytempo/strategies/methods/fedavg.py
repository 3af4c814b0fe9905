"""FedAvg: learning of deep networks from decentralized data (McMahan et al., 2017), Algorithm 1."""

from collections.abc import Sequence

from polytempo.core.events import Update
from polytempo.strategies.base.strategy import strategy
from polytempo.strategies.parts.rounds import Rounds, mean_delta


@strategy("fedavg")
class FedAvg(Rounds):
    """Average the round's models by samples: ``w <- sum_i n_i / n w_i``. All start from w: w plus the mean delta."""

    def aggregate(self, updates: Sequence[Update], now: float) -> None:
        self.model.step(mean_delta(updates))
