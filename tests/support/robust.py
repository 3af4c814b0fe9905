"""Clipping and robust mixing around strategies whose models are two numbers."""

from polytempo.strategies import Strategy, make_strategy
from polytempo.strategies.parts.robust import Robust
from polytempo.testing import begun, update, vector

HERE = vector(0, 0)


class Listener(Strategy):
    """Keeps what it is told; clients are on the branches that it says."""

    def setup(self):
        self.told = []
        self.branches = {}

    def updated(self, update, now):
        self.told.append(update)

    def cluster_of(self, client):
        return self.branches.get(client, 0)


def listener(clip=None, mix=None, clients=20):
    return begun(Robust(Listener(), clip, mix), HERE, clients)


def robust(name, clip=None, mix=None, clients=3, **parameters):
    """A method with clipping and robust mixing around it, its clients joined."""
    return begun(Robust(make_strategy(name, parameters), clip, mix), HERE, clients)


def hand_in(strategy, client, *delta):
    """The delta that the strategy is told."""
    strategy.updated(update(client, 0, HERE, vector(*delta)), 0.0)
    return strategy.inner.told[-1].delta.tolist()
