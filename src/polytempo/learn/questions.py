"""Questions that a client is asked besides training; answers ride with its update. A method may register its own."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import update_wrapper
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polytempo.core.errors import UserError
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


Answer = Callable[[Asked], Any]


@dataclass
class Question:
    """How to answer, and from how many of the client's rows at most."""

    answer: Answer
    most_rows: int | None = None

    def __post_init__(self) -> None:
        update_wrapper(self, self.answer)  # its name, by which the registry knows a file that is loaded again

    def __call__(self, asked: Asked) -> Any:
        n, used = len(asked.rows), self.rows_of(len(asked.rows))
        if used < n:
            evenly = np.arange(used) * n // used  # rows often lie sorted by label
            asked = replace(asked, rows=asked.rows[evenly], y=asked.y[torch.from_numpy(evenly)])
        return self.answer(asked)

    def rows_of(self, rows: int) -> int:
        """From how many of this many rows it is answered."""
        return rows if self.most_rows is None else min(rows, self.most_rows)


questions: Registry[Question] = Registry("question")

SAMPLE = 100
"""Rows that tell a client's mix of labels well enough. Two passes over all rows take as long as 2/3 of an epoch."""


def question(name: str, most_rows: int | None = None) -> Callable[[Answer], Question]:
    """Register a question that is answered from all rows that the client trains on, or from at most this many."""

    def register(answer: Answer) -> Question:
        asked = Question(answer, most_rows)
        questions.add(name, asked)
        return asked

    return register


@question("loss-statistics")
def loss_statistics(asked: Asked) -> dict[str, float]:
    """Mean and mean square of the received model's loss on the client's training data (Lai et al., 2021: Oort)."""
    losses = asked.scorer.losses(asked.received, asked.x, asked.y, asked.rows)
    return {"mean": float(losses.mean()), "mean_square": float(losses.square().mean())}


@question("fit-of-all")
def fit_of_all(asked: Asked) -> dict[str, Any]:
    """How well the received model fits (EchoPFL, Eq. 3): ``g = sum_j (F_c^j - F_i^j)^2 / F_i^j * Var(S_c)`` over the
    labels j that the client has, F_c the shares of the predicted labels, F_i of the true ones, S_c the mean soft
    label; and S_c."""
    soft = _soft_labels(asked, asked.received)
    mean = soft.mean(0)
    true = torch.bincount(asked.y, minlength=soft.shape[1]) / len(asked.y)
    predicted = torch.bincount(soft.argmax(1), minlength=soft.shape[1]) / len(asked.y)
    there = true > 0
    distance = ((predicted - true).square()[there] / true[there]).sum()
    return {"feedback": float(distance * mean.var(unbiased=False)), "soft_labels": mean.tolist()}


@question("fit", most_rows=SAMPLE)
def fit(asked: Asked) -> dict[str, Any]:
    """The same, from a sample."""
    answer: dict[str, Any] = fit_of_all(asked)
    return answer


@question("soft-labels", most_rows=SAMPLE)
def soft_labels(asked: Asked) -> list[float]:
    """The mean soft label of the trained model over the client's training data (Ouyang et al., 2021: ClusterFL)."""
    mean: list[float] = _soft_labels(asked, asked.trained).mean(0).tolist()
    return mean


def _soft_labels(asked: Asked, weights: Tensor) -> Tensor:
    """What the model makes of each of the client's training samples, as shares of the classes."""
    outputs = asked.scorer.outputs(weights, asked.x, asked.rows)
    if outputs.ndim != 2 or asked.y.is_floating_point() or int(asked.y.max()) >= outputs.shape[1]:
        raise UserError(
            f"A model with outputs of shape {list(outputs.shape)} is no classifier: it has no soft labels, which this "
            "method asks for. Set assignment=l1 and refine_every=0 if it is echopfl, or take another method."
        )
    return torch.softmax(outputs.double(), 1)


DIRECTIONS = 3


@question("feature-subspace")
def feature_subspace(asked: Asked) -> list[list[float]]:
    """The directions in which the trained model's last-layer features of the client's training data mostly lie: their
    first 3 right singular vectors (Yan et al., 2024: FedSaC)."""
    features = asked.scorer.features(asked.trained, asked.x, asked.rows)
    directions = torch.linalg.svd(features, full_matrices=False).Vh[:DIRECTIONS]
    return [[round(number, 6) for number in row] for row in directions.double().tolist()]
