"""Questions that a client is asked besides training; answers ride with its update. A method may register its own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polytempo.core.registry import Registry
from polytempo.learn.scoring import Scorer


@dataclass(frozen=True)
class Asked:
    """What a client can answer from: its local training data, the model it got and the model it made."""

    scorer: Scorer
    x: Tensor
    y: Tensor
    """Labels of ``rows``."""
    rows: np.ndarray
    received: Tensor
    trained: Tensor


Question = Callable[[Asked], Any]
questions: Registry[Question] = Registry("question")


def question(name: str) -> Callable[[Question], Question]:
    return lambda answer: questions.add(name, answer)


@question("loss-statistics")
def loss_statistics(asked: Asked) -> dict[str, float]:
    """Mean and mean square of the received model's loss on the client's training data (Lai et al., 2021: Oort)."""
    losses = asked.scorer.losses(asked.received, asked.x, asked.y, asked.rows)
    return {"mean": float(losses.mean()), "mean_square": float(losses.square().mean())}


DIRECTIONS = 3


@question("feature-subspace")
def feature_subspace(asked: Asked) -> list[list[float]]:
    """The directions in which the trained model's last-layer features of the client's training data mostly lie: their
    first 3 right singular vectors (Yan et al., 2024: FedSaC)."""
    features = asked.scorer.features(asked.trained, asked.x, asked.rows)
    directions = torch.linalg.svd(features, full_matrices=False).Vh[:DIRECTIONS]
    return [[round(number, 6) for number in row] for row in directions.double().tolist()]
