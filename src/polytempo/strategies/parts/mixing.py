"""Decayed mixing: how CASA's authors make a synchronous method asynchronous (Liu et al., 2024, section 5.1)."""

from pydantic import Field

from polytempo.core.branch import Branch
from polytempo.core.events import Update
from polytempo.strategies.base.strategy import Strategy, parameters
from polytempo.strategies.parts.staleness import Polynomial, Staleness


@parameters
class DecayedMixing(Strategy):
    """Each update is mixed into a model, less the staler it is. The alpha is that of the paper, which does not name the
    function of staleness: FedAsync's default here is taken (the paper runs FedAsync itself with a hinge)."""

    mixing: float = Field(0.3, gt=0, le=1, description="alpha, the share of a fresh update in the new model")
    staleness: Staleness = Field(Polynomial(0.5), description="s(tau): constant, polynomial:A or hinge:A:B")

    def mix_in(self, branch: Branch, update: Update) -> None:
        """``g <- lerp(g, w_i, alpha s(tau_i))``"""
        branch.mix(update.weights, self.mixing * self.staleness(self.tau(update)))
