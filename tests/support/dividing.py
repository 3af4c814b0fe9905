"""Clustered methods that split on the least sign, or when a test says so: a few small clients are enough to see
clusters come and go."""

from typing import Literal

from polytempo.core.events import Update
from polytempo.strategies.methods.casa_plus import CasaPlus
from polytempo.strategies.methods.cfl import CFL
from polytempo.strategies.methods.icfl import ICFLAsync
from polytempo.strategies.parts.clusters import Clustered


class Casa(CasaPlus):
    """CASA+ that trusts any eigengap, and masks everybody."""

    source: Literal["delta", "weights"] = "weights"
    coverage: float = 0.2
    gamma: float = 0.001

    def share_left_out(self, cluster: float, alpha: float) -> float:
        return 0.25


class Cfl(CFL):
    """CFL that splits whenever it may."""

    eps1: float = 1e6
    eps2: float = 0.0
    gamma_max: float = 0.0
    fewest_members: int = 2


class Icfl(ICFLAsync):
    """ICFL-Async that splits whenever it may."""

    start: float = 1.0


class Counting(Clustered):
    """Counts updates, and after each has a chance to change its clusters."""

    def setup(self) -> None:
        self.received = 0

    def updated(self, update: Update, now: float) -> None:
        self.clusters.branch(update.client).mix(update.weights, 0.5)
        self.received += 1
        self.regroup(now)

    def regroup(self, now: float) -> None:
        raise NotImplementedError
