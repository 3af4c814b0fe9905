"""The models by name. Those made only of Linear, Conv2d, ReLU, MaxPool2d and Flatten train in the fused engine."""

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parameter import UninitializedParameter

from polytempo.core.errors import UserError
from polytempo.core.given import described
from polytempo.core.registry import Registry
from polytempo.core.torch_generator import own_generator
from polytempo_client.imports import from_import_path
from polytempo_client.streams import stream

Build = Callable[["Inputs"], nn.Module]
models: Registry[Build] = Registry("model")
EXPECTED = "Expected a function of Inputs or of nothing, or an nn.Module class without arguments, that gives a module."


@dataclass(frozen=True)
class Inputs:
    """What a model is built for."""

    shape: tuple[int, ...]
    """Of one sample, without the batch."""
    classes: int
    vocabulary: int | None = None


def model(name: str) -> Callable[[Build], Build]:
    return lambda build: models.add(name, build)


def build_model(name: str, inputs: Inputs, seed: int, own: Any = None) -> nn.Module:
    """A fresh model with the initial weights of this seed: a registered name, or the import path of a function of
    ``Inputs`` or of nothing, or of an ``nn.Module`` class without arguments. ``own`` is such a function or class
    itself, or a module, which keeps the weights that it has."""
    if isinstance(own, nn.Module):
        return copy.deepcopy(own)
    build: Any = own or (from_import_path(name, "model") if ":" in name else models[name])
    shown = f"model {name!r}" if own is None else f"model is {described(own)}, which"
    with own_generator(seed):
        try:
            module = build(inputs) if _takes_inputs(build) else build()
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{shown} fails ({type(error).__name__}: {error}). {EXPECTED}") from error
    if not isinstance(module, nn.Module):
        raise UserError(f"{shown} gives {described(module)}. {EXPECTED}")
    check_module(module, shown)
    return module


def check_module(module: nn.Module, shown: str) -> None:
    """Can this module be trained? What its weights lack is said here, not in the middle of a run."""
    if not any(True for _ in module.parameters()):
        raise UserError(f"{shown} has no parameters. Expected an nn.Module with some that train.")
    for name, parameter in module.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise UserError(f"{shown} has no shape yet ({name}). Expected lazy layers to have seen a sample.")
        if parameter.requires_grad and parameter.dtype != torch.float32:
            dtype = str(parameter.dtype).removeprefix("torch.")
            raise UserError(f"{shown} trains {name} as {dtype}. Expected float32: module.float().")
        if not parameter.isfinite().all():
            raise UserError(f"{shown} has NaN or Inf in {name}. Expected finite weights to begin with.")


def first_model(name: str, inputs: Inputs, seed: int, own: Any = None) -> nn.Module:
    """The model that a run or a service with this seed begins with."""
    return build_model(name, inputs, int(stream(seed, "model").integers(2**31)), own)


def _takes_inputs(build: Any) -> bool:
    """A class is called without arguments, and so is a function that needs none."""
    if isinstance(build, type):
        return False
    try:
        known = inspect.signature(build).parameters
    except (TypeError, ValueError):  # not callable, or written in C: the call says what is wrong
        return True
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return "inputs" in known or any(p.default is p.empty and p.kind not in variable for p in known.values())


@model("mlp")
def mlp(inputs: Inputs) -> nn.Module:
    """One hidden layer of 100."""
    return _perceptron(inputs, 100)


@model("har-mlp")
def har_mlp(inputs: Inputs) -> nn.Module:
    """One hidden layer of 256, for motion features."""
    return _perceptron(inputs, 256)


@model("cnn")
def cnn(inputs: Inputs) -> nn.Module:
    """Two 5x5 convolutions of 32 and 64 channels with pooling, and a hidden layer of 512."""
    return _convolutional("cnn", inputs, (32, 64), (512,))


@model("lenet")
def lenet(inputs: Inputs) -> nn.Module:
    """Two 5x5 convolutions of 6 and 16 channels with pooling, and hidden layers of 120 and 84."""
    return _convolutional("lenet", inputs, (6, 16), (120, 84))


@model("cnn1d")
def cnn1d(inputs: Inputs) -> nn.Module:
    """Two convolutions over 5 moments of a signal, of 16 and 32 channels, each with pooling by 4."""
    channels, moments = _signal_shape(inputs)
    layers: list[nn.Module] = [nn.Unflatten(1, (1, moments))] if len(inputs.shape) == 1 else []
    for width in (16, 32):
        layers += [nn.Conv1d(channels, width, 5, padding=2), nn.ReLU(), nn.MaxPool1d(4)]
        channels = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * (moments // 16), inputs.classes))


@model("textcnn")
def textcnn(inputs: Inputs) -> nn.Module:
    """Word embeddings, convolutions over 3, 4 and 5 words, the largest answer of each filter (Kim, 2014)."""
    if inputs.vocabulary is None:
        raise UserError("Model 'textcnn' needs text (tokens); this data set has none. Try --data ag-news.")
    return TextCNN(inputs.vocabulary, inputs.classes)


@model("resnet18")
def resnet18(inputs: Inputs) -> nn.Module:
    """ResNet-18 for small images, with group norm in place of batch norm."""
    channels, _, _ = _image_shape("resnet18", inputs)
    return ResNet(channels, inputs.classes)


def _perceptron(inputs: Inputs, hidden: int) -> nn.Module:
    if inputs.vocabulary is not None:
        raise UserError("A perceptron cannot read tokens. Use --model textcnn for text.")
    size = prod(inputs.shape)
    return nn.Sequential(nn.Flatten(), nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, inputs.classes))


def _convolutional(name: str, inputs: Inputs, channels: tuple[int, int], hidden: tuple[int, ...]) -> nn.Module:
    depth, *sides = _image_shape(name, inputs)
    padding = 2 if min(sides) < 16 else 0  # two unpadded 5x5 convolutions leave nothing of a small image
    layers: list[nn.Module] = []
    for width in channels:
        layers += [nn.Conv2d(depth, width, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2)]
        sides = [(side + 2 * padding - 4) // 2 for side in sides]
        depth = width
    if min(sides) < 1:
        _, height, width = inputs.shape
        raise UserError(f"Model {name!r} needs images of at least 4 x 4, not {height} x {width}. Try --model mlp.")
    sizes = [depth * prod(sides), *hidden]
    layers.append(nn.Flatten())
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], inputs.classes))


def _image_shape(name: str, inputs: Inputs) -> tuple[int, int, int]:
    if len(inputs.shape) != 3:
        raise UserError(f"Model {name!r} needs images (channels x height x width); samples here are {inputs.shape}.")
    channels, height, width = inputs.shape
    return channels, height, width


def _signal_shape(inputs: Inputs) -> tuple[int, int]:
    if inputs.vocabulary is not None or len(inputs.shape) not in (1, 2) or inputs.shape[-1] < 16:
        raise UserError(
            "Model 'cnn1d' needs signals (channels x moments, or moments; at least 16 of them); samples here are "
            f"{'tokens' if inputs.vocabulary is not None else inputs.shape}."
        )
    return (1, *inputs.shape)[-2], inputs.shape[-1]


class TextCNN(nn.Module):
    def __init__(self, vocabulary: int, classes: int, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=0)
        self.convolutions = nn.ModuleList(nn.Conv1d(width, width, words, padding=words - 1) for words in (3, 4, 5))
        self.head = nn.Linear(3 * width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        words = self.embedding(tokens).transpose(1, 2)
        return self.head(torch.cat([F.relu(conv(words)).amax(2) for conv in self.convolutions], 1))


class ResNet(nn.Module):
    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(8, 64)
        widths = (64, 128, 256, 512)
        blocks: list[nn.Module] = []
        for before, width in pairwise((64, *widths)):
            blocks += [_Block(before, width, 1 if width == 64 else 2), _Block(width, width, 1)]
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.norm(self.stem(x))))
        return self.head(x.mean((2, 3)))


class _Block(nn.Module):
    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, width, 3, stride, padding=1, bias=False)
        self.first_norm = nn.GroupNorm(8, width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second_norm = nn.GroupNorm(8, width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != width:
            self.shortcut = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.GroupNorm(8, width))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(y)) + self.shortcut(x))
