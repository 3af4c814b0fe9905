"""Every update is looked at before it touches anything: does it answer the client's task, does it fit the model, are
its numbers numbers, did it stay within bounds. What does not pass is refused with a reason, and changes nothing."""

import math
from collections import deque
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from polytempo.core.errors import UserError
from polytempo.core.flight import Flight
from polytempo.core.model.vectors import floats, tensor_of, trained_entries
from polytempo.core.state import unpack
from polytempo.serve.server.decisions import Refusal
from polytempo.serve.server.operations import Operations
from polytempo.serve.state.events import Push
from polytempo.strategies.base.strategy import Setting
from polytempo_client.errors import WireError
from polytempo_client.model.encodings import Arrays, EncodingError, added, parse_encoding
from polytempo_client.model.schema import Schema
from polytempo_client.protocol import wire_pb2 as pb
from polytempo_client.protocol.bodies import as_written, body_header, entries_of, read_body
from polytempo_client.protocol.personal import jury_of

LARGEST_NORM = 1e19
"""The squares of a longer vector may sum to more than a float32 holds."""
LONGEST_NAME = 40
"""Of an encoding."""
ANSWER_NUMBERS = 1_000_000
"""In all answers of an update. One that is named twice counts twice: whoever makes arrays of lists copies it twice."""
ANSWER_BYTES = 8 * ANSWER_NUMBERS
ANSWER_TENSORS = 1024
HEADER_BYTES = 1 << 20
"""Of a body: its header is parsed at once, and may name millions of tensors."""
DEEPEST_ANSWER = 32
"""Levels of nesting; what is nested deeper could not be written to the journal, or not be read back."""


class Refused(Exception):  # noqa: N818
    """An update that is not applied."""

    def __init__(self, reason: str, void: bool = False, blames: bool = True) -> None:
        self.refusal = Refusal(reason, void, blames)
        super().__init__(self.refusal.reason)


def largest_message(schema: Schema) -> int:
    """More bytes than this no honest client pushes."""
    return 4 * schema.size + 256 * (len(schema.names) + 1) + sum(map(len, schema.names)) + ANSWER_BYTES


def check_push(push: pb.Push, body: bytearray, flight: Flight, setting: Setting, operations: Operations) -> Push:
    """The message, checked; raises Refused. Above all, ``||w - w_start||`` must not exceed the norm bound, which the
    initial model decides."""
    schema = setting.schema
    chosen = push.chosen if push.HasField("chosen") else None
    offered = flight.order.candidates
    if chosen is not None and (offered is None or chosen >= len(offered.models)):
        raise Refused(f"candidate {chosen} was not offered")
    base = flight.base(push.base, chosen)
    if base is None and flight.number < push.base <= flight.forgotten:
        raise Refused(
            f"the update started from model {push.base}, after which too many others were sent to remember it",
            void=True,
        )
    if base is None:
        raise Refused(
            f"the update says that it started from model {push.base}, which task {flight.number} did not hold"
        )
    _check_counts(push, flight, operations.most_samples)
    start = base.weights
    trained = trained_entries(schema, flight.order.mask, flight.order.trainable)
    if push.encoding:
        weights, found = _decoded(push.encoding[:LONGEST_NAME], body, start, trained)
    else:
        weights, found = _weights(body, start, trained, schema)
    tensors = _answer_tensors(found)
    _check_numbers(weights, start, setting, operations)
    answers = _answers(push.answers, tensors)
    for name in _asked(flight):
        if name not in answers:
            raise Refused(f"the answer to {name!r} is missing: push it with answers={{{name!r}: ...}}")
    accuracy, loss = _accuracy(push, "accuracy"), _loss(push)
    # What cannot be true is for the strategy to drop and count: it costs the client nothing but its say.
    jury = jury_of(push.jury) if push.HasField("jury") and flight.order.personal is not None else None
    told = (push.samples, push.steps, chosen, answers, push.ready, accuracy, loss, jury)
    return Push(push.task, push.base, weights, *told, *_compared(push))


def _check_counts(push: pb.Push, flight: Flight, most_samples: int) -> None:
    """An honest client may be wrong about these: that does not count against it."""
    if push.samples < 1:
        raise Refused("Update rejected: it claims 0 samples. Push with samples= at least 1.", blames=False)
    if push.samples > most_samples:
        raise Refused(
            f"Update rejected: its sample count, {push.samples}, exceeds most_samples ({most_samples}). Report the "
            "number of training samples, or raise most_samples in service.toml.",
            blames=False,
        )
    most = flight.order.work.steps_for(push.samples)
    if push.steps > most:
        raise Refused(
            f"Update rejected: it claims {push.steps} steps, and its task has {most} for {push.samples} samples. Train "
            "as long as the task says, or start a service with more --epochs or --steps.",
            blames=False,
        )


def _asked(flight: Flight) -> tuple[str, ...]:
    """What the task asks beside training."""
    offered = flight.order.candidates
    about_candidates = () if offered is None else ("losses",) if offered.use == "best" else ("losses", "shares")
    return (*about_candidates, *flight.order.questions)


def _accuracy(push: pb.Push, name: Literal["accuracy", "used", "alone"]) -> float | None:
    """What the client says of the model that it received, works with or trains alone."""
    if not push.HasField(name):
        return None
    accuracy: float = getattr(push, name)
    if not 0 <= accuracy <= 1:
        raise Refused(f"the update says that its accuracy is {accuracy}; expected 0 to 1")
    return accuracy


def _loss(push: pb.Push) -> float | None:
    if not push.HasField("loss"):
        return None
    if not math.isfinite(push.loss):
        raise Refused(f"the update says that its loss is {push.loss}; expected a number")
    return push.loss


def _compared(push: pb.Push) -> tuple[float | None, float | None]:
    """Accuracies of the model that the client works with and of the one that it trains alone: both, or neither."""
    used, alone = _accuracy(push, "used"), _accuracy(push, "alone")
    return (None, None) if used is None or alone is None else (used, alone)


def _weights(body: bytearray, start: Tensor, trained: Tensor | None, schema: Schema) -> tuple[Tensor, Arrays]:
    """The flat vector, and what else the body holds. Entries that are not trained stay at the start."""
    data = as_written(body, entries_of(schema))
    found: Arrays = {}
    if data is not None:
        weights = floats(data)
    else:
        found = _read(body, max(HEADER_BYTES, 2 * len(body_header(entries_of(schema)))))
        weights = start.clone()
        for name, shape in zip(schema.names, schema.shapes, strict=True):
            span = schema.spans[name]
            array = found.pop(name, None)
            if array is not None:
                weights[span] = _fitting(name, array, shape)
            elif trained is None or trained[span].any():
                raise Refused(f"tensor {name!r} is missing: push all tensors that the task trains")
    return weights if trained is None else torch.where(trained, weights, start), found


def _decoded(name: str, body: bytearray, start: Tensor, trained: Tensor | None) -> tuple[Tensor, Arrays]:
    """The start with the encoded difference, and what else the body holds. Also in an encoding that the server agrees
    to no more: it may be an update that was made before."""
    found = _read(body, HEADER_BYTES)
    entries = start.numel() if trained is None else int(trained.sum())
    try:
        encoding = parse_encoding(name)
        difference = encoding.decode({part: found.pop(part) for part in encoding.parts if part in found}, entries)
    except (UserError, EncodingError) as error:
        raise Refused(f"the update cannot be decoded: {error}") from None
    weights = added(start.numpy(), difference, None if trained is None else trained.numpy())
    return tensor_of(weights), found


def _read(body: bytearray, longest_header: int) -> Arrays:
    header = int.from_bytes(body[:8], "little")
    if header > longest_header:
        raise Refused(f"the tensors have a header of {header} bytes; expected at most {longest_header}")
    try:
        return read_body(body)
    except WireError as error:
        raise Refused(str(error)) from None


def _answer_tensors(found: Arrays) -> list[Tensor]:
    """The tensors of answers; the body may hold nothing else."""
    tensors = [found.pop(f"answer/{i}") for i in range(len(found)) if f"answer/{i}" in found]
    if found:
        raise Refused(f"tensor {next(iter(found))!r} is none of the model's")
    if len(tensors) > ANSWER_TENSORS:
        raise Refused(f"the answers hold {len(tensors)} tensors; expected at most {ANSWER_TENSORS}")
    for array in tensors:
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise Refused("an answer holds NaN or Inf")
    return [torch.from_numpy(array) for array in tensors]


def _fitting(name: str, array: np.ndarray, shape: tuple[int, ...]) -> Tensor:
    if array.dtype != np.float32:
        raise Refused(f"tensor {name!r} has dtype {array.dtype}; expected float32")
    if array.shape != shape:
        raise Refused(f"tensor {name!r} has shape {list(array.shape)}; expected {list(shape)}")
    return torch.from_numpy(array).reshape(-1)


def _check_numbers(weights: Tensor, start: Tensor, setting: Setting, operations: Operations) -> None:
    moved = float(torch.dist(weights, start))
    bound = operations.bound(setting.initial_norm)
    farthest = min(bound.distance, LARGEST_NORM)
    if moved <= farthest:  # NaN and Inf are not; this way almost all pass in one pass over the numbers
        return
    if not torch.isfinite(weights).all():
        raise Refused("the update holds NaN or Inf: lower the learning rate, or look for NaN in the data")
    raise Refused(
        f"Update rejected: its distance from the start, {moved:.4g}, exceeds {farthest:.4g} ({bound.words}). Lower the "
        f"learning rate, or raise {bound.setting} in service.toml.",
        blames=False,  # training diverges at honest clients too, and such an update costs no more than one that counts
    )


def _answers(text: str, tensors: list[Tensor]) -> dict[str, Any]:
    try:
        answers = unpack(text, tensors, plain=True) if text else {}
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        raise Refused("the answers cannot be read") from None
    if type(answers) is not dict or not all(type(name) is str for name in answers):
        raise Refused("the answers are no table of names")
    numbers = _checked_size(answers)
    if numbers > ANSWER_NUMBERS:
        raise Refused(f"the answers hold {numbers} numbers; expected at most {ANSWER_NUMBERS}")
    return answers


def _checked_size(value: Any, depth: int = 0) -> int:
    """How many numbers and words an answer holds."""
    if depth > DEEPEST_ANSWER:
        raise Refused(f"an answer is nested more than {DEEPEST_ANSWER} levels deep")
    if isinstance(value, float) and not math.isfinite(value):
        raise Refused("an answer holds NaN or Inf")
    if isinstance(value, Tensor):
        return value.numel()
    if isinstance(value, np.ndarray):
        return value.size
    parts = [*value, *value.values()] if isinstance(value, dict) else value
    inside = parts if isinstance(parts, list | tuple | deque) else ()
    return 1 + sum(_checked_size(part, depth + 1) for part in inside)
