"""What the author of a method needs, in one place: the base class, events and orders, state, randomness, and the parts
that methods share. Test a method with ``polytempo.testing``."""

from polytempo.core.branch import Branch
from polytempo.core.errors import StrategyError
from polytempo.core.events import Update
from polytempo.core.model.rows import Compare, Sums, meet_rows, sum_rows
from polytempo.core.orders import Candidates, Due, Objective, Order, Orders, Report, Send, SetTimer, Train, Work
from polytempo.core.splits import Regrouping, Split
from polytempo.core.stateful import Attributes, stateful
from polytempo.learn.questions import Asked, question
from polytempo.strategies import Setting, Strategy, make_strategy, strategy
from polytempo.strategies.base.participation import Participation, Quota
from polytempo.strategies.base.strategy import parameters
from polytempo.strategies.parts.arrival_groups import Arrival, ArrivalGroups, weighted_sum
from polytempo.strategies.parts.asynchronous import Asynchronous
from polytempo.strategies.parts.buffered_collaboration import BufferedCollaboration
from polytempo.strategies.parts.buffers import Buffers, Fingerprint
from polytempo.strategies.parts.clusters import Clustered, Clusters
from polytempo.strategies.parts.collaboration import Collaboration, CollaborationRounds, NaiveCollaboration
from polytempo.strategies.parts.cosines import cosine, cosines, nearest
from polytempo.strategies.parts.mixing import DecayedMixing
from polytempo.strategies.parts.mixtures import Mixtures
from polytempo.strategies.parts.proxies import ProxySets, proxy_sets
from polytempo.strategies.parts.rounds import Rounds, mean_delta, weighted_mean
from polytempo.strategies.parts.similarity import Similarity
from polytempo.strategies.parts.spectral import eigengap, spectral_parts
from polytempo.strategies.parts.staleness import Constant, Hinge, Polynomial, Staleness
from polytempo_client.personal.told import Personal
from polytempo_client.streams import stream

__all__ = [
    "Arrival",
    "ArrivalGroups",
    "Asked",
    "Asynchronous",
    "Attributes",
    "Branch",
    "BufferedCollaboration",
    "Buffers",
    "Candidates",
    "Clustered",
    "Clusters",
    "Collaboration",
    "CollaborationRounds",
    "Compare",
    "Constant",
    "DecayedMixing",
    "Due",
    "Fingerprint",
    "Hinge",
    "Mixtures",
    "NaiveCollaboration",
    "Objective",
    "Order",
    "Orders",
    "Participation",
    "Personal",
    "Polynomial",
    "ProxySets",
    "Quota",
    "Regrouping",
    "Report",
    "Rounds",
    "Send",
    "SetTimer",
    "Setting",
    "Similarity",
    "Split",
    "Staleness",
    "Strategy",
    "StrategyError",
    "Sums",
    "Train",
    "Update",
    "Work",
    "cosine",
    "cosines",
    "eigengap",
    "make_strategy",
    "mean_delta",
    "meet_rows",
    "nearest",
    "parameters",
    "proxy_sets",
    "question",
    "spectral_parts",
    "stateful",
    "strategy",
    "stream",
    "sum_rows",
    "weighted_mean",
    "weighted_sum",
]
