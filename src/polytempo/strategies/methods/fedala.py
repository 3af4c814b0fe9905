"""FedALA: adaptive local aggregation for personalized federated learning (Zhang et al., AAAI 2023), Algorithm 1. The
server's half is FedAvg; the client's half is ``learn/rules/fedala.py``."""

from pydantic import Field

from polytempo.strategies.base.strategy import strategy
from polytempo.strategies.methods.fedavg import FedAvg
from polytempo_client.personal.told import Personal


@strategy("fedala")
class FedALA(FedAvg):
    """FedAvg whose clients learn, entry by entry, how much of the served model they start from, and use what they
    train."""

    eta: float = Field(1.0, gt=0, description="rate at which the weights of the served model are learned")
    layers: int = Field(1, ge=1, description="p, the top layers that have such weights; those below are as served")
    percent: float = Field(80.0, gt=0, le=100, description="s, of a client's rows that the weights are learned on")
    threshold: float = Field(
        0.1, gt=0, description="standard deviation of the losses of the last epochs at which the first learning ends"
    )
    window: int = Field(10, ge=1, description="epochs that it looks back")

    def personal(self) -> Personal:
        return Personal("fedala", {name: float(value) for name, value in self.parameters().items()})
