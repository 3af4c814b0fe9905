"""Clustered methods that split on the least sign: a few small clients are enough to see clusters come and go."""

from typing import Literal

from polytempo.strategies.methods.casa_plus import CasaPlus
from polytempo.strategies.methods.cfl import CFL
from polytempo.strategies.methods.icfl import ICFLAsync


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


class Icfl(ICFLAsync):
    """ICFL-Async that splits whenever it may."""

    start: float = 1.0
