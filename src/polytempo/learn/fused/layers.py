"""Which modules the fused engine can train: sequences of the layers it knows that end in Linear, and ``TextCNN``."""

from dataclasses import dataclass

import torch
from torch import nn

from polytempo.learn.models import TextCNN

Weighted = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Embedding
WHOLE = (0, 0)
"""A pooling window as large as what is pooled."""


class UnsupportedError(Exception):
    """The fused engine cannot train this module; the message says why."""


@dataclass
class Layer:
    """A layer that has weights, with what follows it."""

    module: Weighted
    sources: tuple[int, ...]
    """The layers before it whose outputs it is given, side by side. None: it is given the samples."""
    relu: bool = False
    pool: tuple[int, int] = (1, 1)
    """The windows, in rows and columns, of which only the maximum is passed on."""

    @property
    def convolves(self) -> bool:
        return isinstance(self.module, nn.Conv1d | nn.Conv2d)

    @property
    def outputs(self) -> int:
        if isinstance(self.module, nn.Linear):
            return self.module.out_features
        return self.module.embedding_dim if isinstance(self.module, nn.Embedding) else self.module.out_channels


def layers_of(module: nn.Module) -> list[Layer]:
    """The layers of a module in order, or an ``UnsupportedError``."""
    layers = _of_text(module) if type(module) is TextCNN else _of_sequence(module)
    _check_parameters([layer.module for layer in layers])
    return layers


def _of_text(module: TextCNN) -> list[Layer]:
    layers = [Layer(module.embedding, ())]
    for part in module.convolutions:
        assert isinstance(part, nn.Conv1d)
        layers.append(Layer(part, (0,), relu=True, pool=WHOLE))
    return [*layers, Layer(module.head, tuple(range(1, len(layers))))]


def _of_sequence(module: nn.Module) -> list[Layer]:
    layers: list[Layer] = []
    flat = False
    for part in _parts(module):
        before = (len(layers) - 1,) if layers else ()
        last = layers[-1] if layers else None
        if type(part) is nn.Flatten:
            _require(part.start_dim == 1 and part.end_dim == -1, f"{part} does not flatten whole samples")
            flat = True
        elif type(part) is nn.Unflatten:
            one_channel = part.dim == 1 and len(part.unflattened_size) == 2 and part.unflattened_size[0] == 1
            _require(not layers and one_channel, f"{part} does not make a signal of one channel of each sample")
        elif type(part) is nn.Linear:
            _require(flat or not layers or isinstance(layers[-1].module, nn.Linear), "Linear follows without Flatten")
            layers.append(Layer(part, before))
        elif type(part) is nn.Conv1d or type(part) is nn.Conv2d:
            _require(not flat, f"{type(part).__name__} follows Flatten")
            _check_convolution(part)
            layers.append(Layer(part, before))
        elif type(part) is nn.ReLU:
            _require(bool(layers), "ReLU comes before the first layer with weights")
            layers[-1].relu = True
        elif type(part) is nn.MaxPool1d or type(part) is nn.MaxPool2d:
            follows = last is not None and last.convolves and last.pool == (1, 1) and not flat
            _require(follows, f"{type(part).__name__} does not follow a convolution")
            layers[-1].pool = _window(part)
        else:
            raise UnsupportedError(f"it knows no {type(part).__name__}")
    _require(bool(layers) and isinstance(layers[-1].module, nn.Linear), "the last layer is not Linear")
    _require(not layers[-1].relu, "the last layer is followed by ReLU")
    return layers


def _parts(module: nn.Module) -> list[nn.Module]:
    if not isinstance(module, nn.Sequential):
        return [module]
    _require(type(module).forward is nn.Sequential.forward, f"{type(module).__name__} has a forward of its own")
    return [part for child in module for part in _parts(child)]


def _check_convolution(layer: nn.Conv1d | nn.Conv2d) -> None:
    _require(not isinstance(layer.padding, str), f"{layer} does not give its padding as numbers")
    _require(set(layer.dilation) == {1}, f"{layer} does not have dilation 1")
    _require(layer.groups == 1, f"{layer} has groups")
    _require(layer.padding_mode == "zeros", f"{layer} does not pad with zeros")


def _window(layer: nn.MaxPool1d | nn.MaxPool2d) -> tuple[int, int]:
    window = two(layer.kernel_size)
    plain = two(layer.padding) == two(0) and two(layer.dilation) == two(1) and not layer.ceil_mode
    _require(
        two(layer.stride) == window and plain and not layer.return_indices,
        f"{layer} has windows that overlap, leave gaps or are padded",
    )
    return window if isinstance(layer, nn.MaxPool2d) else (1, window[1])


def two(size: int | tuple[int, ...]) -> tuple[int, int]:
    """A size in rows and columns; of a layer over time, its columns twice."""
    return (size, size) if isinstance(size, int) else (size[0], size[-1])


def _check_parameters(modules: list[Weighted]) -> None:
    _require(len(set(modules)) == len(modules), "a layer is used twice")
    for module in modules:
        _require(isinstance(module, nn.Embedding) or module.bias is not None, f"{module} has no bias")
        for parameter in module.parameters():
            _require(parameter.requires_grad and parameter.dtype == torch.float32, f"{module} is frozen or not float32")


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise UnsupportedError(otherwise)
