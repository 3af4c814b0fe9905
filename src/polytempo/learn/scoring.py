"""How good a model is: metric and loss per sample. One pass per model, however many clients share it."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polytempo.core.errors import UserError
from polytempo.learn.eager import Loss
from polytempo.learn.flat import initial_vector
from polytempo.learn.forward import Forward, Outputs
from polytempo.learn.metrics import ACCURACY, Metric, correct

ROUNDING = 1e-4
"""By which a share may leave 0 to 1."""


class Scorer:
    """Scores flat vectors on rows of a data set; may be called from several threads at once. ``outputs`` is how an
    engine computes the module's outputs; without one torch does."""

    def __init__(
        self,
        module: nn.Module,
        loss: Loss = F.cross_entropy,
        metric: Metric = ACCURACY,
        outputs: Outputs | None = None,
    ) -> None:
        self._forward = Forward(module)
        self._outputs = outputs or self._forward.outputs
        self._loss = loss
        self._metric = metric
        self._initial = initial_vector(module)

    def outputs(self, weights: Tensor, x: Tensor, rows: np.ndarray | None = None) -> Tensor:
        """The model's outputs for these rows, or for all."""
        return self._outputs(weights, x, rows)

    def features(self, weights: Tensor, x: Tensor, rows: np.ndarray) -> Tensor:
        """What the model's last linear layer is given for these rows."""
        return self._forward.features(weights, x, rows)

    def metric(self, weights: Tensor, x: Tensor, y: Tensor, rows: np.ndarray) -> np.ndarray:
        """The metric of each row, for accuracy 0 or 1; ``y`` holds the labels of these rows."""
        values = self._metric.per_sample(self.outputs(weights, x, rows), y).numpy()
        _check_scores(self._metric, values)
        return values

    def losses(self, weights: Tensor, x: Tensor, y: Tensor, rows: np.ndarray | None = None) -> Tensor:
        """The loss of each of these rows, or of all; ``y`` holds the labels of these rows."""
        outputs = self.outputs(weights, x, rows)
        if self._loss is F.cross_entropy:
            return F.cross_entropy(outputs, y, reduction="none")
        return torch.stack([self._loss(outputs[i : i + 1], y[i : i + 1]) for i in range(len(y))])

    def judged(self, weights: Tensor, x: Tensor, y: Tensor, rows: np.ndarray) -> np.ndarray:
        """For each of these rows its error and half its Brier score; ``y`` holds the labels of these rows. With another
        loss than cross-entropy, or another metric than accuracy, both are the row's loss as a share of what the
        initial model's is, at most 1."""
        if self._loss is F.cross_entropy and self._metric.per_sample is correct:
            outputs = self.outputs(weights, x, rows)
            shares = torch.softmax(outputs, 1)
            right = shares[torch.arange(len(y)), y]
            brier = (shares.square().sum(1) + 1) / 2 - right
            return torch.stack([1 - correct(outputs, y), brier], 1).double().numpy()
        losses = self.losses(weights, x, y, rows).double()
        before = self.losses(self._initial, x, y, rows).double()
        share = torch.where(losses > 0, (losses / before).nan_to_num(1.0, 1.0), 0.0).clamp(0, 1)
        return torch.stack([share, share], 1).numpy()


def _check_scores(metric: Metric, values: np.ndarray) -> None:
    low, high = float(values.min(initial=0)), float(values.max(initial=0))
    if not (math.isfinite(low) and math.isfinite(high)):
        raise UserError(
            f"The metric {metric.name} gives NaN or Inf for some samples. Expected one finite number per sample."
        )
    if metric.share and not (-ROUNDING <= low <= high <= 1 + ROUNDING):
        raise UserError(
            f"The metric {metric.name} gives {low if low < 0 else high:.4g} for a sample. Expected shares from 0 to 1. "
            "For other numbers give a Metric with share=False and its direction, higher_is_better."
        )


def mean_per_part(values: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """Means over consecutive parts of the given sizes (each at least 1)."""
    begins = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    return np.add.reduceat(values.astype(np.float64), begins) / np.asarray(sizes)
