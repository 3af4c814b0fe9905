"""CASA's bi-level decay (section 4.2): how much an update counts, by its cluster and then by its own staleness."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Decay:
    """The figures of one cluster at one round t: ``alpha_c`` (Eq. 6) and ``r_c`` (Eq. 8)."""

    cluster: float
    """``alpha_c = alpha0 Omega(t) / log2(|C_k| + 3)``; the base makes it less than 1 for every cluster."""
    stale_after: float
    """``r_c = |C_k| (2 - Omega(t))``: the staleness beyond which an update counts less."""
    power: float = 0.5
    """0: no decay of its own for a stale client (CASA-D)."""

    def client(self, tau: int) -> float:
        """``alpha_i = alpha_c if tau <= r_c else alpha_c / tau^power``, a square root in the paper (Eq. 7)"""
        return self.cluster if tau <= self.stale_after else float(self.cluster / tau**self.power)


def omega(t: int, kappa: float) -> float:
    """``Omega(t) = (e / 2.8)^(kappa t)``: falls from 1 as the training goes on."""
    return math.exp(kappa * t * (1 - math.log(2.8)))


def bi_level(t: int, members: int, alpha0: float, kappa: float) -> Decay:
    """CASA's decay in round t for a cluster with so many members."""
    return Decay(alpha0 * omega(t, kappa) / math.log2(members + 3), stale_after(t, members, kappa))


def stale_after(t: int, members: int, kappa: float) -> float:
    """``r_c = |C_k| (2 - Omega(t))`` (Eq. 8)"""
    return members * (2 - omega(t, kappa))
