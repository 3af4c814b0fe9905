"""Where everything lies: layers and a sample's shape turned into a table of stages for the compiled loop."""

from dataclasses import astuple, dataclass, fields
from itertools import pairwise
from math import prod

import numpy as np
from torch import nn

from polytempo.core.errors import UserError
from polytempo.learn.fused.layers import Layer
from polytempo.learn.fused.vector import LANES

GROUP_VECTORS = 24
"""Samples share one matrix product until it is this many vectors long."""
LARGEST_WASTE = 1.25
"""Images are convolved where they lie if filling rows up to whole vectors costs no more than this; else unfolded."""


@dataclass
class Stage:
    """A convolution or a dense layer, then perhaps relu, then perhaps the maximum of 2 x 2. Numbers count floats."""

    convolution: int
    relu: int
    pool: int
    inputs: int
    filters: int
    taps: int
    """Weights of one filter."""
    kernel: int = 0

    weights: int = 0
    bias: int = 0

    frame: int = 0
    """Begin of the input frame: samples of planes of rows, with a border of zeros."""
    frame_pitch: int = 0
    plane: int = 0
    row: int = 0
    border: int = 0
    height: int = 1
    width: int = 1

    out_height: int = 1
    out_width: int = 1
    pitch: int = 0
    """From one row of a convolution's output to the next."""
    vectors: int = 0
    """Of one sample's output plane."""
    group: int = 0
    """Samples convolved at once: in the output, each filter has a line with their planes side by side."""
    line: int = 0
    unfold: int = 0

    next: int = 0
    """Begin of the next stage's frame, where the output goes."""
    next_pitch: int = 0
    next_plane: int = 0
    next_row: int = 0
    next_border: int = 0
    winners: int = 0
    """Begin of the list of which of 2 x 2 was the largest."""

    spots: int = 0
    """Begin of its lists in the index table: where vectors begin, and what filters, taps and samples add to that."""
    by_filter: int = 0
    by_tap: int = 0
    by_sample: int = 0

    @property
    def out_shape(self) -> tuple[int, ...]:
        if not self.convolution:
            return (self.filters,)
        shrink = 2 if self.pool else 1
        return self.filters, self.out_height // shrink, self.out_width // shrink


STAGE = np.dtype([(field.name, np.int64) for field in fields(Stage)])


@dataclass(frozen=True)
class Plan:
    """What the compiled loop needs to know about a model, for samples of one shape and batches up to one size."""

    stages: np.ndarray
    table: np.ndarray
    scratch: np.ndarray
    """Numbers needed for: frames, unfolded images, a convolution's output, a plane's folded gradient, winners."""
    parameters: int


def make_plan(layers: list[Layer], shape: tuple[int, ...], largest_batch: int) -> Plan:
    """Lay out the frames and index lists of a model for samples of this shape."""
    stages: list[Stage] = []
    for layer in layers:
        stage = _convolution(layer, shape) if isinstance(layer.module, nn.Conv2d) else _dense(layer, shape)
        stages.append(stage)
        shape = stage.out_shape
    parameters = frames = winners = 0
    for stage in stages:
        stage.weights, stage.bias = parameters, parameters + stage.filters * stage.taps
        parameters = stage.bias + stage.filters
        stage.frame = frames
        frames += largest_batch * stage.frame_pitch + 2 * LANES
        stage.winners = winners
        winners += largest_batch * prod(stage.out_shape)
    for stage, after in pairwise(stages):
        stage.next, stage.next_pitch = after.frame, after.frame_pitch
        stage.next_plane, stage.next_row, stage.next_border = after.plane, after.row, after.border
    stages[-1].next, stages[-1].next_pitch = frames, _whole(stages[-1].filters)
    frames += largest_batch * stages[-1].next_pitch + LANES
    scratch = [
        frames,
        max(stage.unfold * stage.taps * stage.line for stage in stages) + 2 * LANES,
        max(stage.filters * stage.line for stage in stages) + 2 * LANES,
        max(stage.kernel**2 * stage.line for stage in stages) + 2 * LANES,
        winners,
    ]
    table = _index(stages, largest_batch)
    return Plan(np.array([astuple(s) for s in stages], STAGE), table, np.array(scratch, np.int64), parameters)


def _dense(layer: Layer, shape: tuple[int, ...]) -> Stage:
    inputs = prod(shape)
    if not isinstance(layer.module, nn.Linear) or inputs != layer.module.in_features:
        raise UserError(f"{layer.module} was given samples of shape {shape}. Does the model fit the data?")
    stage = Stage(0, layer.relu, layer.pool, inputs, layer.outputs, taps=inputs, frame_pitch=_whole(inputs))
    if len(shape) == 3:
        stage.plane, stage.row = shape[1] * shape[2], shape[2]
    return stage


def _convolution(layer: Layer, shape: tuple[int, ...]) -> Stage:
    module = layer.module
    assert isinstance(module, nn.Conv2d)
    if len(shape) != 3 or shape[0] != module.in_channels:
        expected = f"({module.in_channels}, height, width)"
        raise UserError(
            f"{module} was given samples of shape {shape}; expected {expected}. Does the model fit the data?"
        )
    inputs, height, width = shape
    kernel, border = module.kernel_size[0], int(module.padding[0])
    stage = Stage(1, layer.relu, layer.pool, inputs, layer.outputs, inputs * kernel**2, kernel)
    stage.height, stage.width, stage.border = height, width, border
    stage.row = width + 2 * border
    stage.plane = stage.row * (height + 2 * border)
    stage.frame_pitch = _whole(inputs * stage.plane) + LANES
    stage.out_height, stage.out_width = height + 2 * border - kernel + 1, stage.row - kernel + 1
    if min(stage.out_shape) < 1:
        raise UserError(f"{module} leaves nothing of samples of shape {shape}. Use larger images or a smaller model.")
    stage.unfold = _whole(stage.out_width) > LARGEST_WASTE * stage.out_width
    stage.pitch = stage.out_width if stage.unfold else _whole(stage.out_width)
    stage.vectors = _whole(stage.out_height * stage.pitch) // LANES
    stage.group = -(-GROUP_VECTORS // stage.vectors)
    stage.line = stage.group * stage.vectors * LANES
    return stage


def _index(stages: list[Stage], largest_batch: int) -> np.ndarray:
    """The index table. It begins with the vectors of a plain line: 0, 8, 16, ..."""
    lists = [np.arange(0, max(max(stage.frame_pitch, stage.line) for stage in stages), LANES)]

    def listed(indices: np.ndarray) -> int:
        lists.append(indices.reshape(-1))
        return sum(map(len, lists[:-1]))

    for stage in stages:
        stage.by_filter = listed(np.arange(stage.filters) * (stage.line if stage.convolution else stage.inputs))
        stage.by_sample = listed(np.arange(largest_batch) * stage.frame_pitch)
        if stage.unfold:
            stage.by_tap = listed(np.arange(stage.taps) * stage.line)
        elif stage.convolution:
            positions = np.arange(stage.vectors) * LANES
            corners = positions // stage.pitch * stage.row + positions % stage.pitch
            stage.spots = listed(np.arange(stage.group)[:, None] * stage.frame_pitch + corners)
            plane, row, column = np.indices((stage.inputs, stage.kernel, stage.kernel))
            stage.by_tap = listed(plane * stage.plane + row * stage.row + column)
    return np.concatenate(lists).astype(np.int64)


def _whole(count: int) -> int:
    """Rounded up to whole vectors."""
    return -(-count // LANES) * LANES
