"""FedPer: federated learning with personalization layers (Arivazhagan et al., 2019), Algorithms 1 and 2."""

from polytempo.strategies.base.strategy import strategy
from polytempo.strategies.methods.fedavg import FedAvg


@strategy("fedper")
class FedPer(FedAvg):
    """FedAvg whose clients keep the head of the model to themselves; head and body are trained together."""

    personal_layers = ("head",)
