"""What models are trained for: labels of some kind, the loss that fits them, and the metric that judges models."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch import Tensor
from torch.nn import functional as F

from polytempo.core.errors import UserError
from polytempo.core.given import described
from polytempo.core.registry import Registry
from polytempo.learn.metrics import ACCURACY, F1, MAE, Metric, alike
from polytempo_client.imports import from_import_path, unknown

Labels = Literal["classes", "numbers", "several"]
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """Loss, metric and direction together."""

    name: str
    labels: Labels
    """One class per sample; numbers; or several labels at once, each 0 or 1."""
    loss: Loss
    metric: Metric

    def __post_init__(self) -> None:
        if self.labels not in get_args(Labels):
            raise UserError(unknown(f"kind of labels of the goal {self.name}", str(self.labels), get_args(Labels)))
        if not callable(self.loss):
            expected = "Expected a function of outputs and labels that gives one number."
            raise UserError(f"loss of the goal {self.name} is {described(self.loss)}. {expected}")
        if not isinstance(self.metric, Metric):
            raise UserError(f"metric of the goal {self.name} is {described(self.metric)}. Expected a Metric.")


def squared(outputs: Tensor, y: Tensor) -> Tensor:
    """Mean squared error."""
    return F.mse_loss(alike(outputs, y), y)


def absolute(outputs: Tensor, y: Tensor) -> Tensor:
    """Mean absolute error."""
    return F.l1_loss(alike(outputs, y), y)


def huber(outputs: Tensor, y: Tensor) -> Tensor:
    """Squared near the label, absolute beyond a distance of 1."""
    return F.huber_loss(alike(outputs, y), y)


def each_label(outputs: Tensor, y: Tensor) -> Tensor:
    """Binary cross-entropy of each label, from logits."""
    return F.binary_cross_entropy_with_logits(alike(outputs, y), y)


losses: Registry[Loss] = Registry("loss")
losses.add("cross-entropy", F.cross_entropy)
losses.add("mse", squared)
losses.add("mae", absolute)
losses.add("huber", huber)
losses.add("binary", each_label)

goals: Registry[Goal] = Registry("goal")
goals.add("classification", Goal(name="classification", labels="classes", loss=F.cross_entropy, metric=ACCURACY))
goals.add("regression", Goal(name="regression", labels="numbers", loss=squared, metric=MAE))
goals.add("multi-label", Goal(name="multi-label", labels="several", loss=each_label, metric=F1))


def goal_by_name(name: str) -> Goal:
    """A known goal, or one by import path."""
    return as_goal(from_import_path(name, "goal")) if ":" in name else goals[name]


def as_goal(made: Any) -> Goal:
    if not isinstance(made, Goal):
        raise UserError(f"goal is {described(made)}. Expected a name or a Goal.")
    return made


def loss_by_name(name: str) -> Loss:
    """A known loss, or one by import path."""
    return from_import_path(name, "loss") if ":" in name else losses[name]  # type: ignore[no-any-return]
