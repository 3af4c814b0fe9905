"""PACE: towards asynchronous client collaboration in personalized federated learning (Liu et al.).

Algorithm 1 is in ``parts/buffered_collaboration.py``, with where it departs from the paper. The weights are
pFedGraph's."""

from polytempo.strategies.base.strategy import strategy
from polytempo.strategies.methods.pfedgraph import GraphWeights
from polytempo.strategies.parts.buffered_collaboration import BufferedCollaboration


@strategy("pace")
class Pace(GraphWeights, BufferedCollaboration):
    """A personal model per client from a collaboration graph that is kept true under asynchrony: pFedGraph's weights,
    buffers that every update refreshes by relevance and staleness, and multicasts to clients in training."""
