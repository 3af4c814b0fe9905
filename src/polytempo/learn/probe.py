"""Try out a model, a loss and a metric on a few samples, so that one that does not fit is an error before a run."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polytempo.core.errors import UserError
from polytempo.core.model.frozen import copy_of, set_training
from polytempo.core.torch_generator import own_generator
from polytempo.learn.dropout import seeded_dropout
from polytempo.learn.eager import Loss
from polytempo.learn.metrics import PerSample, correct

EXPECTED = {
    "model": "a module that gives one row of outputs per sample, fit for the loss and the labels, with a gradient",
    "loss": "a function of outputs and labels that gives one finite number (a tensor of shape ()) with a gradient",
    "metric": "a function of outputs and labels that gives one number per sample (a tensor of shape (samples,))",
}


def check_parts(module: nn.Module, loss: Loss, metric: PerSample, x: Tensor, y: Tensor) -> None:
    """One training step and one scoring of these samples (at least two: batch norm needs them) on a copy of the module.
    Whatever fails, gives the wrong shape or draws from torch's global generator, which all threads share, is named in
    a ``UserError``. The module and the generator stay as they were."""

    def forward() -> Tensor:
        trained, _ = seeded_dropout(set_training(copy_of(module)))
        return trained(x.clone())

    def step() -> Tensor:
        value = loss(outputs, y)
        if isinstance(value, Tensor) and value.shape == ():
            value.backward()
        return value

    with own_generator():
        outputs = _try("model", forward, lambda result: result.shape[:1] == y.shape[:1] and result.requires_grad)
        # what fails in our own loss and metric is a model whose outputs they cannot read
        _try("model" if loss is F.cross_entropy else "loss", step, lambda r: r.shape == () and bool(r.isfinite()))
        scored = outputs.detach()
        _try("model" if metric is correct else "metric", lambda: metric(scored, y), lambda r: r.shape == y.shape[:1])


def _try(part: str, call: Callable[[], Tensor], fits: Callable[[Tensor], bool]) -> Tensor:
    generator = torch.get_rng_state()
    try:
        result = call()
    except Exception as error:
        raise UserError(
            f"The {part} fails on the first samples ({type(error).__name__}: {error}). Expected {EXPECTED[part]}."
        ) from error
    if not isinstance(result, Tensor) or not fits(result):
        raise UserError(f"The {part} gives {_described(result)}. Expected {EXPECTED[part]}.")
    if not torch.equal(torch.get_rng_state(), generator):
        raise UserError(
            f"The {part} draws from torch's global random generator, so no run could be repeated. For dropout use "
            "nn.Dropout layers, which Polytempo replaces by ones with a generator of their own (and dropout=0 in "
            "recurrent and attention layers); leave other randomness out."
        )
    return result


def _described(result: Any) -> str:
    if not isinstance(result, Tensor):
        return f"a value of type {type(result).__name__}"
    if result.numel() == 1 and not result.isfinite().all():
        return f"{result.item()}"
    return f"a tensor of shape {tuple(result.shape)}" + ("" if result.requires_grad else " without gradient")
