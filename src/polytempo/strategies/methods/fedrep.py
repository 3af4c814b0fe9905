"""FedRep: exploiting shared representations for personalized federated learning (Collins et al., ICML 2021),
Algorithm 1. The server's half is FedAvg on the shared layers; the client's half is ``learn/rules/fedrep.py``."""

from pydantic import Field

from polytempo.strategies.base.strategy import strategy
from polytempo.strategies.methods.fedavg import FedAvg
from polytempo_client.personal.told import Personal


@strategy("fedrep")
class FedRep(FedAvg):
    """FedAvg whose clients keep the head of the model to themselves, and train first the head and then the body."""

    personal_layers = ("head",)

    head_share: float = Field(
        0.667,
        gt=0,
        lt=1,
        description="share of the local steps that train the head; 10 epochs of 15, or of 11, in the authors' scripts",
    )

    def personal(self) -> Personal:
        return Personal("fedrep", {"head_share": self.head_share})
