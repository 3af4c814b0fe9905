"""What models are judged by: metrics, each with its name, its direction and its range."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from polytempo.core.errors import UserError
from polytempo.core.given import described, title_of
from polytempo.core.registry import Registry
from polytempo_client.imports import from_import_path

PerSample = Callable[[Tensor, Tensor], Tensor]
"""Outputs and labels -> one number per sample."""


@dataclass(frozen=True)
class Scale:
    """How the numbers of a metric read."""

    name: str = "accuracy"
    higher_is_better: bool = True
    share: bool = True
    """From 0 to 1; shown in percent."""

    @property
    def factor(self) -> float:
        """By what numbers are multiplied where they are shown."""
        return 100.0 if self.share else 1.0

    @property
    def axis(self) -> str:
        """For the axis of a plot."""
        return f"{self.name} (%)" if self.share else self.name

    @property
    def unit(self) -> str:
        """Behind a number, or behind what a column shows: nothing needs to be said of accuracies but that."""
        return "%" if self == Scale() else self.axis.replace("(%)", "%")

    @property
    def best(self) -> Literal["highest", "lowest"]:
        """Which value of a column stands out."""
        return "highest" if self.higher_is_better else "lowest"

    def shown(self, value: float) -> str:
        return f"{value:.1%}" if self.share else f"{value:.4g}"

    def number(self, value: float) -> str:
        """Without its unit, for a column of a table."""
        return f"{100 * value:.1f}" if self.share else f"{value:.4g}"

    def better(self, one: float, other: float) -> bool:
        """Is the first number better than the second?"""
        return one > other if self.higher_is_better else one < other


@dataclass(frozen=True, kw_only=True)
class Metric(Scale):
    """A function of outputs and labels that gives one number per sample, with its name and direction."""

    name: str = field()  # without the default of a Scale
    per_sample: PerSample

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise UserError(f"name of a metric is {self.name!r}. Expected what tables and plots call it.")
        if not callable(self.per_sample):
            raise UserError(
                f"per_sample of the metric {self.name} is {described(self.per_sample)}. Expected a function of outputs "
                "and labels."
            )
        for setting in ("higher_is_better", "share"):
            if not isinstance(getattr(self, setting), bool):
                value = getattr(self, setting)
                raise UserError(f"{setting} of the metric {self.name} is {value!r}. Expected True or False.")

    def scale(self) -> dict[str, Any]:
        """What config.json says of it."""
        return {name: value for name, value in vars(self).items() if name != "per_sample"}


def scale_of(config: Mapping[str, Any]) -> Scale:
    """The scale of a run's figures, by its configuration. Runs of older versions say nothing of it."""
    known = (config.get("resolved") or {}).get("metric")
    return Scale(**known) if known else Scale()


def correct(outputs: Tensor, y: Tensor) -> Tensor:
    """1 where the largest output is the label, else 0."""
    return (outputs.argmax(1) == y).float()


def absolute_error(outputs: Tensor, y: Tensor) -> Tensor:
    """The mean over a sample's numbers of the distance from the label."""
    return (alike(outputs, y) - y).abs().flatten(1).mean(1) if y.ndim > 1 else (alike(outputs, y) - y).abs()


def squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    """The mean over a sample's numbers of the squared distance from the label."""
    squares = (alike(outputs, y) - y).square()
    return squares.flatten(1).mean(1) if y.ndim > 1 else squares


def f1_per_sample(outputs: Tensor, y: Tensor) -> Tensor:
    """The harmonic mean of precision and recall over a sample's labels; 1 where there is none and none was found. An
    output above 0 is a label."""
    found, true = alike(outputs, y) > 0, y > 0
    both, either = (found & true).sum(1), found.sum(1) + true.sum(1)
    return torch.where(either > 0, 2 * both / either.clamp(min=1), 1.0)


def labels_right(outputs: Tensor, y: Tensor) -> Tensor:
    """The share of a sample's labels that are right. An output above 0 is a label."""
    return ((alike(outputs, y) > 0) == (y > 0)).float().mean(1)


def alike(outputs: Tensor, y: Tensor) -> Tensor:
    """Outputs in the shape of the labels: a model may give one number per sample as a row of its own."""
    if outputs.numel() != y.numel():
        raise ValueError(f"outputs have shape {tuple(outputs.shape)}, and labels {tuple(y.shape)}")
    return outputs.reshape(y.shape)


ACCURACY = Metric(name="accuracy", per_sample=correct)
MAE = Metric(name="mae", per_sample=absolute_error, higher_is_better=False, share=False)
MSE = Metric(name="mse", per_sample=squared_error, higher_is_better=False, share=False)
F1 = Metric(name="f1", per_sample=f1_per_sample)
LABELS_RIGHT = Metric(name="labels-right", per_sample=labels_right)

metrics: Registry[Metric] = Registry("metric")
for _metric in (ACCURACY, MAE, MSE, F1, LABELS_RIGHT):
    metrics.add(_metric.name, _metric)


def as_metric(made: Any) -> Metric:
    """A metric, or a function as one: higher is better, and it is best from 0 to 1."""
    if isinstance(made, Metric):
        return made
    if not callable(made):
        raise UserError(f"metric is {described(made)}. Expected a Metric, or a function of outputs and labels.")
    return Metric(name=title_of(made), per_sample=made)


def metric_by_name(name: str) -> Metric:
    """A known metric, or one by import path."""
    return as_metric(from_import_path(name, "metric")) if ":" in name else metrics[name]
