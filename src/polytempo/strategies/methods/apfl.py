"""APFL: adaptive personalized federated learning (Deng, Kamani and Mahdavi, 2020), Algorithm 1. The server's half is
FedAvg; the client's half is ``learn/rules/apfl.py``."""

from pydantic import Field

from polytempo.strategies.base.strategy import strategy
from polytempo.strategies.methods.fedavg import FedAvg
from polytempo_client.personal.told import Personal


@strategy("apfl")
class APFL(FedAvg):
    """FedAvg whose clients use a mixture of the served model and one of their own, and learn how much of each."""

    alpha: float = Field(0.5, ge=0, le=1, description="share of the client's own model in the mixture, at first")
    adaptive: bool = Field(True, description="let each client learn its alpha")

    def personal(self) -> Personal:
        return Personal("apfl", {"alpha": self.alpha, "adaptive": float(self.adaptive)})
