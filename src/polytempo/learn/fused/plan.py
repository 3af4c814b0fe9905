"""Where everything lies: a module and a sample's shape turned into a table of stages for the compiled loop."""

from dataclasses import dataclass
from math import prod

import numpy as np
from torch import nn

from polytempo.core.errors import UserError
from polytempo.learn.fused.vector import LANES

GROUP_VECTORS = 24
"""Samples share one matrix product until it is this many vectors long."""
LARGEST_WASTE = 1.25
"""An image is convolved where it lies if rows filled up to whole vectors grow by no more than this; else unfolded."""

STAGE = np.dtype(
    [
        (name, np.int64)
        for name in (
            # what it computes: a convolution or a dense layer, then relu, then 2x2 maximum
            "convolution", "relu", "pool", "weights", "bias", "inputs", "filters", "kernel", "taps",
            # its input frame: samples of planes of rows, with a border of zeros
            "frame", "frame_pitch", "plane", "row", "border", "height", "width",
            # a convolution's own output: rows of `pitch` positions, `group` samples side by side in each filter's line
            "out_height", "out_width", "pitch", "vectors", "group", "line", "unfold",
            # where its output goes: the next stage's frame
            "next", "next_pitch", "next_plane", "next_row", "next_border", "winners",
            # begin of its index lists in the table
            "spots", "by_tap", "by_filter", "by_sample",
        )
    ]
)  # fmt: skip


@dataclass
class Layer:
    """A layer that has weights, with what follows it."""

    module: nn.Linear | nn.Conv2d
    relu: bool = False
    pool: bool = False

    @property
    def outputs(self) -> int:
        return self.module.out_features if isinstance(self.module, nn.Linear) else self.module.out_channels


@dataclass(frozen=True)
class Plan:
    """What the compiled loop needs to know about a model, for samples of one shape and batches up to one size."""

    stages: np.ndarray
    table: np.ndarray
    scratch: np.ndarray
    """Floats needed for: frames, unfolded images, a convolution's output, a plane's folded gradient; winners."""
    parameters: int


def layers_of(module: nn.Module) -> list[Layer]:
    """The layers of a module that the fused engine can train; ``Unsupported`` says why not."""
    layers: list[Layer] = []
    flat = False
    for part in _parts(module):
        if type(part) is nn.Flatten:
            _require(part.start_dim == 1 and part.end_dim == -1, f"{part} does not flatten the whole sample")
            flat = True
        elif type(part) is nn.Linear:
            _require(
                flat or not any(isinstance(x.module, nn.Conv2d) for x in layers), "Linear needs a Flatten before it"
            )
            layers.append(Layer(part))
            flat = True
        elif type(part) is nn.Conv2d:
            _require(not flat, "Conv2d after Flatten or Linear")
            _check_convolution(part)
            layers.append(Layer(part))
        elif type(part) is nn.ReLU:
            _require(bool(layers), "ReLU before the first layer with weights")
            layers[-1].relu = True
        elif type(part) is nn.MaxPool2d:
            after_convolution = bool(layers) and isinstance(layers[-1].module, nn.Conv2d) and not flat
            _require(after_convolution and not layers[-1].pool, "MaxPool2d does not follow a Conv2d")
            _check_pool(part)
            layers[-1].pool = True
        else:
            raise Unsupported(f"it knows no {type(part).__name__}")
    _require(bool(layers) and isinstance(layers[-1].module, nn.Linear), "the last layer is not Linear")
    _require(not layers[-1].relu, "the last layer is followed by ReLU")
    modules = [layer.module for layer in layers]
    _require(len(set(modules)) == len(modules), "a layer is used twice")
    for layer in modules:
        _require(layer.bias is not None, f"{layer} has no bias")
        _require(
            all(p.requires_grad and p.dtype.itemsize == 4 for p in layer.parameters()),
            f"{layer} is frozen or no float32",
        )
    return layers


class Unsupported(Exception):
    """The fused engine cannot train this module; the message completes "because ..."."""


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise Unsupported(otherwise)


def _parts(module: nn.Module) -> list[nn.Module]:
    if not isinstance(module, nn.Sequential):
        return [module]
    _require(type(module).forward is nn.Sequential.forward, f"{type(module).__name__} has its own forward")
    return [part for child in module for part in _parts(child)]


def _check_convolution(layer: nn.Conv2d) -> None:
    square = layer.kernel_size[0] == layer.kernel_size[1]
    padding = layer.padding
    _require(square and layer.stride == (1, 1) and layer.dilation == (1, 1), f"{layer} is not square with stride 1")
    _require(layer.groups == 1, f"{layer} has groups")
    _require(not isinstance(padding, str) and padding[0] == padding[1], f"{layer} has uneven or named padding")
    _require(layer.padding_mode == "zeros", f"{layer} does not pad with zeros")


def _check_pool(layer: nn.MaxPool2d) -> None:
    numbers = [layer.kernel_size, layer.stride, layer.padding, layer.dilation]
    wanted = [{2, (2, 2)}, {2, (2, 2)}, {0, (0, 0)}, {1, (1, 1)}]
    fits = all(number in allowed for number, allowed in zip(numbers, wanted, strict=True))
    _require(fits and not layer.ceil_mode and not layer.return_indices, f"{layer} is not MaxPool2d(2)")


def make_plan(layers: list[Layer], shape: tuple[int, ...], largest_batch: int) -> Plan:
    """Lay out the frames and index lists of a model for samples of this shape."""
    stages = np.zeros(len(layers), STAGE)
    shapes = _set_sizes(stages, layers, shape)
    table: list[np.ndarray] = []
    begin = 0

    def listed(indices: np.ndarray) -> int:
        nonlocal begin
        table.append(indices.reshape(-1))
        begin += indices.size
        return begin - indices.size

    longest = max(max(s["frame_pitch"] for s in stages), max(s["group"] * s["vectors"] * LANES for s in stages))
    identity = listed(np.arange(0, longest, LANES))
    frames = winners = 0
    for s, stage in enumerate(stages):
        stage["frame"] = frames
        frames += largest_batch * int(stage["frame_pitch"]) + 2 * LANES
        stage["by_sample"] = listed(np.arange(largest_batch) * stage["frame_pitch"])
        if stage["convolution"]:
            stage["winners"] = winners
            winners += largest_batch * prod(shapes[s])
            _index_convolution(stage, identity, listed)
        else:
            stage["spots"] = identity
            stage["by_filter"] = listed(np.arange(stage["filters"]) * stage["inputs"])
    for stage, after in zip(stages, stages[1:], strict=False):
        for name in ("pitch", "plane", "row", "border"):
            stage[f"next_{name}"] = after["frame_pitch" if name == "pitch" else name]
        stage["next"] = after["frame"]
    stages[-1]["next"] = frames
    stages[-1]["next_pitch"] = _whole(int(stages[-1]["filters"]))
    frames += largest_batch * int(stages[-1]["next_pitch"]) + LANES
    scratch = [
        frames,
        max(int(s["unfold"] * s["taps"] * s["line"]) for s in stages) + 2 * LANES,
        max(int(s["filters"] * s["line"]) for s in stages) + 2 * LANES,
        max(int(s["kernel"] ** 2 * s["line"]) for s in stages) + 2 * LANES,
        winners,
    ]
    parameters = int(stages[-1]["bias"] + stages[-1]["filters"])
    return Plan(stages, np.concatenate(table).astype(np.int64), np.array(scratch, np.int64), parameters)


def _set_sizes(stages: np.ndarray, layers: list[Layer], shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Fill in what depends on one layer and its input alone; the shapes of the layers' outputs."""
    shapes = []
    begin = 0
    for stage, layer in zip(stages, layers, strict=True):
        stage["relu"], stage["pool"], stage["filters"] = layer.relu, layer.pool, layer.outputs
        if isinstance(layer.module, nn.Conv2d):
            _set_convolution(stage, layer.module, shape)
            sides = (stage["out_height"], stage["out_width"])
            shape = (layer.outputs, *(int(side) // 2 if layer.pool else int(side) for side in sides))
            if min(shape) < 1:
                raise UserError(f"The images are too small for {layer.module}: nothing is left of them.")
        else:
            if prod(shape) != layer.module.in_features:
                raise UserError(f"{layer.module} was given samples of shape {tuple(shape)}.")
            height, width = shape[1:] if len(shape) == 3 else (1, 1)
            stage["inputs"] = stage["taps"] = prod(shape)
            stage["plane"], stage["row"] = height * width, width
            stage["frame_pitch"] = _whole(prod(shape))
            shape = (layer.outputs,)
        shapes.append(shape)
        stage["weights"] = begin
        stage["bias"] = begin + stage["filters"] * stage["taps"]
        begin = int(stage["bias"] + stage["filters"])
    return shapes


def _set_convolution(stage: np.ndarray, layer: nn.Conv2d, shape: tuple[int, ...]) -> None:
    if len(shape) != 3 or shape[0] != layer.in_channels:
        raise UserError(
            f"{layer} was given samples of shape {tuple(shape)}; expected ({layer.in_channels}, height, width)."
        )
    inputs, height, width = shape
    kernel, border = layer.kernel_size[0], int(layer.padding[0])
    row = width + 2 * border
    plane = row * (height + 2 * border)
    out_height, out_width = height + 2 * border - kernel + 1, row - kernel + 1
    unfold = _whole(out_width) > LARGEST_WASTE * out_width
    pitch = out_width if unfold else _whole(out_width)
    vectors = max(_whole(out_height * pitch) // LANES, 1)
    group = -(-GROUP_VECTORS // vectors)
    values = {
        "convolution": 1, "inputs": inputs, "kernel": kernel, "taps": inputs * kernel**2, "plane": plane, "row": row,
        "border": border, "height": height, "width": width, "frame_pitch": _whole(inputs * plane) + LANES,
        "out_height": out_height, "out_width": out_width, "pitch": pitch, "vectors": vectors, "group": group,
        "line": group * vectors * LANES, "unfold": unfold,
    }  # fmt: skip
    for name, value in values.items():
        stage[name] = value


def _index_convolution(stage: np.ndarray, identity: int, listed) -> None:  # type: ignore[no-untyped-def]
    stage["by_filter"] = listed(np.arange(stage["filters"]) * stage["line"])
    if stage["unfold"]:
        stage["spots"] = identity
        stage["by_tap"] = listed(np.arange(stage["taps"]) * stage["line"])
        return
    positions = np.arange(stage["vectors"]) * LANES
    corners = positions // stage["pitch"] * stage["row"] + positions % stage["pitch"]
    stage["spots"] = listed(np.arange(stage["group"])[:, None] * stage["frame_pitch"] + corners)
    planes, rows, columns = np.indices((stage["inputs"], stage["kernel"], stage["kernel"]))
    stage["by_tap"] = listed(planes * stage["plane"] + rows * stage["row"] + columns)


def _whole(count: int) -> int:
    """Rounded up to whole vectors."""
    return -(-count // LANES) * LANES
