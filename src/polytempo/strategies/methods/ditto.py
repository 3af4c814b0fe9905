"""Ditto: fair and robust federated learning through personalization (Li et al., ICML 2021), Algorithm 1. The server's
half is FedAvg; the client's half is ``learn/rules/ditto.py``."""

from pydantic import Field

from polytempo.strategies.base.strategy import strategy
from polytempo.strategies.methods.fedavg import FedAvg
from polytempo_client.personal.told import Personal


@strategy("ditto")
class Ditto(FedAvg):
    """FedAvg whose clients also train a model of their own, near the one they are served, and use that."""

    lam: float = Field(
        1.0,
        ge=0,
        description="lambda, how near the client's own model stays to the served one; .1, 1 or 2 in the paper, .05 to "
        ".2 under strong attacks",
    )

    def personal(self) -> Personal:
        return Personal("ditto", {"lambda": self.lam})
