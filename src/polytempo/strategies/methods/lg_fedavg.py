"""LG-FedAvg: think locally, act globally: federated learning with local and global representations (Liang et al.,
2020), Algorithm 1. The paper first trains the whole model by FedAvg; this begins with the initial one."""

from polytempo.strategies.base.strategy import strategy
from polytempo.strategies.methods.fedavg import FedAvg


@strategy("lg-fedavg")
class LgFedAvg(FedAvg):
    """FedAvg whose clients keep the body of the model to themselves and share the head."""

    personal_layers = ("body",)
