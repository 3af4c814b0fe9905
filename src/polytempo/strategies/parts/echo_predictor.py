"""EchoPFL's predictor of broadcasts (section 5.2.1): a recurrent network of two layers of 128 units, which looks at the
sizes of a cluster's last ten changes and says whether the next one will be smaller than what has accumulated since the
last broadcast. It begins pre-trained on 1,200 recorded states and learns on with every aggregation.

Sizes are given relative to the accumulated change, as logarithms, so that neither the size of the model nor the stage
of the training matters. Where clusters merge, their networks are averaged (the paper distils)."""

import math
from collections import deque
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from polytempo.core.model.vectors import schema_of
from polytempo.core.stateful import Attributes, stateful
from polytempo.strategies.parts.echo_states import RECORDED
from polytempo_client.model.schema import Schema
from polytempo_client.streams import stream

LAST = 10
"""K, the changes that it looks at and the states that it learns from."""
UNITS, LAYERS = 128, 2
RATE = 0.05
"""Of a step of gradient descent while it is in use."""
EPOCHS, BATCH, FIRST_RATE = 12, 200, 0.003
"""Of the pre-training, with Adam."""
LARGEST = 5.0
"""No logarithm of a ratio is larger."""


class Network(nn.Module):
    """Sequences of numbers -> one number each: how sure it is."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.RNN(1, UNITS, LAYERS, batch_first=True)
        self.verdict = nn.Linear(UNITS, 1)

    def forward(self, windows: Tensor) -> Tensor:
        outputs, _ = self.recurrent(windows[..., None])
        verdicts: Tensor = self.verdict(outputs[:, -1])[:, 0]
        return verdicts


@stateful
class Predictor(Attributes):
    """The network of one cluster, as a flat vector, and the last states of which the outcome is known."""

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights
        self.judged: tuple[list[float], float] | None = None
        """The window and the accumulated change that were last judged."""
        self.known: deque[tuple[list[float], float]] = deque(maxlen=LAST)
        """Windows and whether the change that had accumulated was at least the one that followed (Eq. 4)."""

    def judge(self, changes: Sequence[float], accumulated: float) -> bool:
        """Say whether the next change will be at most the accumulated one; ``learn`` comes back to this verdict."""
        window = window_of(changes, accumulated)
        self.judged = window, accumulated
        with torch.no_grad():
            return bool(_verdicts(self.weights, torch.tensor([window])) >= 0)

    def learn(self, change: float) -> None:
        """The change that followed the state last judged: one step of gradient descent on the last ones."""
        if self.judged is None:
            return
        window, accumulated = self.judged
        self.judged = None
        self.known.append((window, float(accumulated >= change)))
        windows, outcomes = zip(*self.known, strict=True)
        self.weights = self.weights - RATE * _loss_gradient(self.weights, torch.tensor(windows), torch.tensor(outcomes))

    def copy(self) -> "Predictor":
        """The same network without states."""
        return Predictor(self.weights)

    def mean(self, other: "Predictor") -> "Predictor":
        """The mean of two networks, without states."""
        return Predictor(torch.lerp(self.weights, other.weights, 0.5))


def window_of(changes: Sequence[float], accumulated: float) -> list[float]:
    """``log(change / accumulated)`` of the last changes, the newest last, with zeros before the first."""
    ratios = [_log_ratio(change, accumulated) for change in list(changes)[-LAST:]]
    return [0.0] * (LAST - len(ratios)) + ratios


def pretrained() -> Predictor:
    """A predictor that has learnt from the recorded states."""
    return Predictor(_pretrained())


def examples(states: Sequence[tuple[float, float]]) -> tuple[Tensor, Tensor]:
    """Windows and outcomes from consecutive (change, accumulated change) of one cluster."""
    changes = [change for change, _ in states]
    places = range(LAST - 1, len(states) - 1)
    windows = [window_of(changes[: place + 1], states[place][1]) for place in places]
    outcomes = [float(states[place][1] >= changes[place + 1]) for place in places]
    return torch.tensor(windows), torch.tensor(outcomes)


def _log_ratio(change: float, accumulated: float) -> float:
    if not (0 < change < math.inf and 0 < accumulated < math.inf):
        return LARGEST if change > accumulated else -LARGEST
    return min(max(math.log(change / accumulated), -LARGEST), LARGEST)


@cache
def _network() -> tuple[Network, Schema]:
    """The shape of the network; its own weights are never used."""
    network = Network()
    return network, schema_of(network)


def _verdicts(weights: Tensor, windows: Tensor) -> Tensor:
    network, schema = _network()
    verdicts: Tensor = functional_call(network, schema.views(weights), (windows,))
    return verdicts


def _loss_gradient(weights: Tensor, windows: Tensor, outcomes: Tensor) -> Tensor:
    weights = weights.detach().requires_grad_(True)
    loss = F.binary_cross_entropy_with_logits(_verdicts(weights, windows), outcomes)
    return torch.autograd.grad(loss, weights)[0]


@cache
def _pretrained() -> Tensor:
    rng = stream(0, "echo predictor")
    size = _network()[1].size
    weights = torch.from_numpy(rng.uniform(-1, 1, size).astype(np.float32) / math.sqrt(UNITS))
    weights.requires_grad_(True)
    optimizer = torch.optim.Adam([weights], lr=FIRST_RATE)
    windows, outcomes = examples(RECORDED)
    for _ in range(EPOCHS):
        for rows in torch.split(torch.from_numpy(rng.permutation(len(outcomes))), BATCH):
            weights.grad = _loss_gradient(weights, windows[rows], outcomes[rows])
            optimizer.step()
    return weights.detach()
