"""Where everything lies: layers and a sample's shape turned into a table of stages for the compiled loop.

Every stage reads one frame and writes another: the numbers of a batch, for each sample rows of places of channels.
Around them is a border of zeros as wide as the padding of the convolutions that read it.
"""

from dataclasses import astuple, dataclass, fields
from math import prod

import numpy as np
from torch import nn

from polytempo.core.errors import UserError
from polytempo.learn.fused.compiling import LANES
from polytempo.learn.fused.layers import WHOLE, Layer, two
from polytempo.learn.fused.tiles import OUTER_VECTORS

READ, EMBED, CONVOLVE, FLATTEN, DENSE = range(5)
FIRST_CACHE = 6000
"""Floats of packed weights that a pass over an image may use again and again."""


@dataclass
class Stage:
    """What the compiled loop needs to know of one stage. Numbers count floats, and places in a kind of memory begin
    where the field of its name says."""

    kind: int
    relu: int = 0
    filters: int = 0
    """Outputs of a dense layer, channels of a convolution's output, words of a vocabulary."""
    taps: int = 0
    """Weights of one filter."""
    weights: int = 0
    bias: int = 0
    padding: int = -1
    """The word whose vector is not trained."""

    frame: int = 0
    """Begin of the frame that is read; from its first sample's first number on, ``source``."""
    source: int = 0
    source_pitch: int = 0
    row: int = 0
    channels: int = 0
    passes_back: int = 0
    """Is a gradient wanted of what is read?"""
    clears: int = 0
    """Is it the last to read its frame, so that the frame's gradient begins with it?"""

    kernel_rows: int = 0
    kernel_columns: int = 0
    down: int = 0
    """From a window to the one below."""
    right: int = 0
    out_rows: int = 0
    out_columns: int = 0
    pool_rows: int = 0
    pool_columns: int = 0

    together: int = 1
    """Columns of the output that share a vector."""
    lanes: int = 0
    """Filters of these columns, in whole vectors."""
    wide_run: int = 0
    """What one row of their windows sees."""
    whole_run: int = 0
    """What one row of a single window sees, in whole vectors."""
    kernel_rows_at_once: int = 0
    by_tap: int = 0
    by_filter: int = 0
    packed_bias: int = 0
    gradient: int = 0
    bias_gradient: int = 0

    rows: int = 1
    """Of what is written."""
    columns: int = 1
    target: int = 0
    target_pitch: int = 0
    target_row: int = 0
    target_step: int = 0
    winners: int = 0


STAGE = np.dtype([(one.name, np.int64) for one in fields(Stage)])


@dataclass(frozen=True)
class Plan:
    """What the compiled loop needs to know about a model, for samples of one shape and batches up to one size."""

    stages: np.ndarray
    parameters: int
    frames: int
    """Numbers in each kind of memory, from here on."""
    packed: int
    out: int
    winners: int
    words: int


@dataclass
class Activations:
    """Outputs of a stage, or of several side by side, for a whole batch."""

    rows: int
    columns: int
    channels: int
    border: tuple[int, int] = (0, 0)
    begin: int = 0

    @property
    def row(self) -> int:
        return (self.columns + 2 * self.border[1]) * self.channels

    @property
    def pitch(self) -> int:
        return whole((self.rows + 2 * self.border[0]) * self.row) + LANES

    def inside(self, padding: tuple[int, int] = (0, 0)) -> int:
        """Begin of the first place, or of the first window of a convolution with this padding."""
        return self.begin + (self.border[0] - padding[0]) * self.row + (self.border[1] - padding[1]) * self.channels


@dataclass
class _Step:
    """A stage with the frames it lies between."""

    stage: Stage
    source: Activations | None
    target: Activations
    channel: int = 0
    """Of the target, where its outputs begin."""
    padding: tuple[int, int] = (0, 0)


def make_plan(layers: list[Layer], shape: tuple[int, ...], batch: int) -> Plan:
    """Lay out the frames and packed weights of a model for samples of this shape."""
    steps = _steps(layers, shape)
    frames = _place_frames(steps, batch)
    parameters = packed = winners = 0
    for step in steps:
        stage = step.stage
        _connect(step, steps)
        stage.weights, stage.bias = parameters, parameters + _weights(stage)
        parameters = stage.bias + (stage.filters if stage.kind in (CONVOLVE, DENSE) else 0)
        if stage.kind == CONVOLVE:
            packed = _place_packed(stage, packed)
            stage.winners = winners
            winners += batch * stage.rows * stage.columns * stage.filters
    out = max(stage.out_rows * stage.out_columns * stage.filters for stage in (step.stage for step in steps))
    table = np.array([astuple(step.stage) for step in steps], STAGE)
    words = steps[0].stage.filters if steps[0].stage.kind == EMBED else 0
    spare = 2 * LANES  # for what vectors read and write beyond an end
    return Plan(table, parameters, frames + spare, packed + spare, out + spare, winners + spare, words)


def _steps(layers: list[Layer], shape: tuple[int, ...]) -> list[_Step]:
    side_by_side = {part: layer.sources for layer in layers if len(layer.sources) > 1 for part in layer.sources}
    frames: dict[tuple[int, ...], Activations] = {}
    steps: list[_Step] = []
    for number, layer in enumerate(layers):
        if not steps and not isinstance(layer.module, nn.Embedding):
            steps.append(_reading(layer, shape))
            frames[()] = steps[0].target
        source = frames.get(layer.sources)
        if source is not None and isinstance(layer.module, nn.Linear) and source.rows * source.columns > 1:
            steps.append(_flattening(source))
            source = steps[-1].target
        stage, padding = _stage(layer, source, shape)
        group = side_by_side.get(number, (number,))
        channels = [layers[part].outputs for part in group]
        target = frames.setdefault(group, Activations(stage.rows, stage.columns, sum(channels)))
        steps.append(_Step(stage, source, target, sum(channels[: group.index(number)]), padding))
    return steps


def _reading(layer: Layer, shape: tuple[int, ...]) -> _Step:
    """Samples are images of channels, signals of channels or of one channel, or rows of numbers."""
    if not layer.convolves:
        return _Step(Stage(READ, channels=1, columns=prod(shape)), None, Activations(1, 1, prod(shape)))
    flat = isinstance(layer.module, nn.Conv1d)
    full = (1, *shape)[-2:] if flat else shape
    if len(full) != 3 - flat or full[0] != layer.module.in_channels:
        expected = f"({layer.module.in_channels}, {'moments' if flat else 'height, width'})"
        raise _misfit(layer, f"samples of shape {shape}; expected {expected}")
    rows = 1 if flat else full[1]
    stage = Stage(READ, channels=full[0], rows=rows, columns=full[-1])
    return _Step(stage, None, Activations(rows, full[-1], full[0]))


def _flattening(source: Activations) -> _Step:
    stage = Stage(FLATTEN, channels=source.channels, rows=source.rows, columns=source.columns)
    return _Step(stage, source, Activations(1, 1, source.rows * source.columns * source.channels))


def _stage(layer: Layer, source: Activations | None, shape: tuple[int, ...]) -> tuple[Stage, tuple[int, int]]:
    module = layer.module
    if isinstance(module, nn.Embedding):
        words, width = module.num_embeddings, module.embedding_dim
        padding = -1 if module.padding_idx is None else module.padding_idx
        return Stage(EMBED, filters=words, channels=width, padding=padding, columns=prod(shape)), (0, 0)
    assert source is not None
    if isinstance(module, nn.Linear):
        if source.channels != module.in_features:
            raise _misfit(layer, f"{source.channels} numbers of samples of shape {shape}")
        return Stage(DENSE, layer.relu, module.out_features, module.in_features), (0, 0)
    return _convolution(layer, source, shape)


def _convolution(layer: Layer, source: Activations, shape: tuple[int, ...]) -> tuple[Stage, tuple[int, int]]:
    module = layer.module
    assert isinstance(module, nn.Conv1d | nn.Conv2d)
    flat = isinstance(module, nn.Conv1d)
    assert not isinstance(module.padding, str)
    (height, width), (down, right), padding = two(module.kernel_size), two(module.stride), two(module.padding)
    if flat:
        height, down, padding = 1, 1, (0, padding[1])
    source.border = (max(source.border[0], padding[0]), max(source.border[1], padding[1]))
    filters, channels = module.out_channels, module.in_channels
    stage = Stage(CONVOLVE, layer.relu, filters, channels * height * width, channels=channels)
    stage.kernel_rows, stage.kernel_columns, stage.down, stage.right = height, width, down, right * channels
    stage.out_rows = (source.rows + 2 * padding[0] - height) // down + 1
    stage.out_columns = (source.columns + 2 * padding[1] - width) // right + 1
    window = (stage.out_rows, stage.out_columns) if layer.pool == WHOLE else layer.pool
    stage.pool_rows, stage.pool_columns = window
    stage.rows, stage.columns = stage.out_rows // window[0], stage.out_columns // window[1]
    if min(stage.out_rows, stage.out_columns, stage.rows, stage.columns) < 1:
        raise UserError(f"{module} leaves nothing of samples of shape {shape}. Use larger images or a smaller model.")
    stage.together = _together(stage, right)
    stage.lanes = whole(stage.together * filters)
    stage.wide_run = width * channels + (stage.together - 1) * stage.right
    stage.whole_run = whole(width * channels)
    at_once = FIRST_CACHE // (stage.wide_run * min(stage.lanes, OUTER_VECTORS * LANES))
    stage.kernel_rows_at_once = min(max(at_once, 1), height)
    return stage, padding


def _together(stage: Stage, stride: int) -> int:
    """The number of columns that wastes least: of lanes, and of taps that only one of the columns sees."""

    def used(columns: int) -> float:
        window = stage.kernel_columns + (columns - 1) * stride
        return columns * stage.filters * stage.kernel_columns / (whole(columns * stage.filters) * window)

    possible = range(1, max(1, LANES // stage.filters) + 1)
    return max((columns for columns in possible if stage.out_columns % columns == 0), key=used)


def _misfit(layer: Layer, given: str) -> UserError:
    return UserError(f"{layer.module} was given {given}. Does the model fit the data?")


def _place_frames(steps: list[_Step], batch: int) -> int:
    """Give every frame its begin; the numbers of all."""
    end = 0
    for frame in {id(step.target): step.target for step in steps}.values():
        frame.begin = end
        end += batch * frame.pitch
    return end


def _connect(step: _Step, steps: list[_Step]) -> None:
    stage, source, target = step.stage, step.source, step.target
    stage.target, stage.target_pitch = target.inside() + step.channel, target.pitch
    stage.target_row, stage.target_step = target.row, target.channels
    if stage.kind == READ and target.rows * target.columns == 1:
        stage.target_step = 1
    if source is None:
        return
    readers = [other.stage for other in steps if other.source is source]
    stage.frame, stage.source, stage.source_pitch = source.begin, source.inside(step.padding), source.pitch
    stage.row, stage.down = source.row, stage.down * source.row
    stage.passes_back = all(other.target is not source or other.stage.kind != READ for other in steps)
    stage.clears = stage.passes_back and readers[-1] is stage


def _weights(stage: Stage) -> int:
    return stage.filters * (stage.channels if stage.kind == EMBED else stage.taps)


def _place_packed(stage: Stage, begin: int) -> int:
    """Give the packed weights and gradients of a convolution their places; where they end."""
    taps = stage.kernel_rows * stage.wide_run * stage.lanes
    filters = stage.filters * stage.kernel_rows * stage.whole_run if stage.passes_back else 0
    stage.by_tap, stage.gradient = begin, begin + taps
    stage.packed_bias = begin + 2 * taps
    stage.bias_gradient = stage.packed_bias + stage.lanes
    stage.by_filter = stage.bias_gradient + stage.lanes
    return stage.by_filter + filters


def whole(count: int) -> int:
    """Rounded up to whole vectors."""
    return -(-count // LANES) * LANES
