"""Which modules the fused engine can train: sequences of the layers it knows, ending in Linear."""

from dataclasses import dataclass

import torch
from torch import nn


class UnsupportedError(Exception):
    """The fused engine cannot train this module; the message says why."""


@dataclass
class Layer:
    """A layer that has weights, with what follows it."""

    module: nn.Linear | nn.Conv2d
    relu: bool = False
    pool: bool = False

    @property
    def outputs(self) -> int:
        return self.module.out_features if isinstance(self.module, nn.Linear) else self.module.out_channels


def layers_of(module: nn.Module) -> list[Layer]:
    """The layers of a module in order, or an ``UnsupportedError``."""
    layers: list[Layer] = []
    flat = False
    for part in _parts(module):
        if type(part) is nn.Flatten:
            _require(part.start_dim == 1 and part.end_dim == -1, f"{part} does not flatten whole samples")
            flat = True
        elif type(part) is nn.Linear:
            _require(flat or not layers or isinstance(layers[-1].module, nn.Linear), "Linear follows without Flatten")
            layers.append(Layer(part))
        elif type(part) is nn.Conv2d:
            _require(not flat, "Conv2d follows Flatten")
            _check_convolution(part)
            layers.append(Layer(part))
        elif type(part) is nn.ReLU:
            _require(bool(layers), "ReLU comes before the first layer with weights")
            layers[-1].relu = True
        elif type(part) is nn.MaxPool2d:
            follows = bool(layers) and isinstance(layers[-1].module, nn.Conv2d) and not layers[-1].pool and not flat
            _require(follows, "MaxPool2d does not follow Conv2d")
            _check_pool(part)
            layers[-1].pool = True
        else:
            raise UnsupportedError(f"it knows no {type(part).__name__}")
    _require(bool(layers) and isinstance(layers[-1].module, nn.Linear), "the last layer is not Linear")
    _require(not layers[-1].relu, "the last layer is followed by ReLU")
    _check_parameters([layer.module for layer in layers])
    return layers


def _parts(module: nn.Module) -> list[nn.Module]:
    if not isinstance(module, nn.Sequential):
        return [module]
    _require(type(module).forward is nn.Sequential.forward, f"{type(module).__name__} has a forward of its own")
    return [part for child in module for part in _parts(child)]


def _check_convolution(layer: nn.Conv2d) -> None:
    square = layer.kernel_size[0] == layer.kernel_size[1] and layer.padding[0] == layer.padding[1]
    _require(
        square and not isinstance(layer.padding, str), f"{layer} is not square with equal padding given as a number"
    )
    _require(layer.stride == (1, 1) and layer.dilation == (1, 1), f"{layer} does not have stride 1 and dilation 1")
    _require(layer.groups == 1, f"{layer} has groups")
    _require(layer.padding_mode == "zeros", f"{layer} does not pad with zeros")


def _check_pool(layer: nn.MaxPool2d) -> None:
    twos = layer.kernel_size in (2, (2, 2)) and layer.stride in (2, (2, 2))
    plain = layer.padding in (0, (0, 0)) and layer.dilation in (1, (1, 1))
    _require(twos and plain and not layer.ceil_mode and not layer.return_indices, f"{layer} is not MaxPool2d(2)")


def _check_parameters(modules: list[nn.Linear | nn.Conv2d]) -> None:
    _require(len(set(modules)) == len(modules), "a layer is used twice")
    for module in modules:
        _require(module.bias is not None, f"{module} has no bias")
        for parameter in module.parameters():
            _require(parameter.requires_grad and parameter.dtype == torch.float32, f"{module} is frozen or not float32")


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise UnsupportedError(otherwise)
