"""What a client sends of its updates: the tensors as they are, or the encoded difference to the model that the training
started from, with what was held back of earlier updates."""

import logging
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from polytempo_client.errors import DtypeError, NamesError, NotFiniteError, ShapeError, UpdateError
from polytempo_client.logs import log
from polytempo_client.model.encodings import Arrays, ErrorFeedback, parse_encoding
from polytempo_client.model.schema import Schema
from polytempo_client.protocol.tasks import Task, Tensors, read_tensors


class Upload(NamedTuple):
    """An update on its way."""

    base: int
    """Number of the model that it counts from."""
    encoding: str
    """Empty: whole float32 tensors."""
    arrays: Arrays
    left: np.ndarray | None = None
    """What is held back of it."""


class OwnUploads:
    """One client's updates. ``wish`` is the encoding that it would like, empty for none; the server says in its welcome
    whether it may."""

    def __init__(self, wish: str = "") -> None:
        self.wish = wish
        self._feedback = ErrorFeedback(parse_encoding(wish)) if wish else None
        self._encodes = False
        self._complained = False
        self._made: tuple[tuple[int, int | None], Upload] | None = None
        """Task and choice, and what was encoded of the result, of which nobody knows yet if the server has it."""

    def agree(self, encoding: str) -> None:
        """What the server wants: the wish, or float32."""
        self._encodes = bool(encoding) and encoding == self.wish
        if self.wish and not self._encodes and not self._complained:
            self._complained = True
            reason = f"The server takes no updates in {self.wish}: they are sent in float32."
            log("not compressed", level=logging.WARNING, reason=reason)

    def make(self, task: Task, tensors: Tensors, chosen: int | None, schema: Schema) -> Upload:
        """The result of a task. One that is encoded is the same until the server has said yes or no to it, whatever
        came in between: it may have it, and then that is what was not held back."""
        trained = trained_by(task, schema)
        named = fitting(tensors, trained, schema)
        for name, array in named.items():
            if not np.isfinite(array).all():
                raise NotFiniteError(
                    f"The update's tensor {name!r} holds NaN or Inf, so it is not sent. Lower the learning rate, or "
                    "look for NaN in the data."
                )
        if self._feedback is None or not self._encodes:
            return Upload(task.base, "", named)
        about = (task.number, chosen)
        if self._made is None or self._made[0] != about:
            start = start_of(task, chosen, schema)
            arrays, left = self._feedback.encode(end_of(named, start, trained, schema) - start, trained)
            self._made = about, Upload(task.base, self.wish, arrays, left)
        return self._made[1]

    def confirm(self, upload: Upload) -> None:
        """The server has it."""
        self._made = None
        if self._feedback is not None and upload.left is not None:
            self._feedback.keep(upload.left)

    def discard(self) -> None:
        """The server does not want it."""
        self._made = None


def start_of(task: Task, chosen: int | None, schema: Schema) -> np.ndarray:
    """The model that the update counts from, as it came."""
    tensors = read_tensors(task.started.body, schema)
    best = task.base == task.number and task.ordered.candidate_use == "best"
    prefix = f"candidate/{chosen}/" if best and f"candidate/{chosen}/{schema.names[0]}" in tensors else ""
    return schema.flatten({name: tensors[prefix + name] for name in schema.names})


def trained_by(task: Task, schema: Schema) -> np.ndarray | None:
    """The entries that the task trains; None for all."""
    masks = {name: task.extras[f"mask/{name}"] for name in schema.names if f"mask/{name}" in task.extras}
    return schema.trained(schema.flatten(masks) != 0 if masks else None, task.ordered.trainable)


def fitting(tensors: Tensors, trained: np.ndarray | None, schema: Schema) -> Arrays:
    """The tensors of an update, of the model's names and shapes, in its order and as float32. Those that the task does
    not train are left out; they may be missing."""
    if not isinstance(tensors, Mapping):
        raise UpdateError(f"An update is named tensors, a mapping from names to arrays; got {type(tensors).__name__}.")
    for name in tensors:
        if name not in schema.spans:
            raise NamesError(
                f"The update holds tensor {name!r}, which is none of the model's: {', '.join(schema.names)}."
            )
    found = {}
    for name, shape in zip(schema.names, schema.shapes, strict=True):
        if trained is not None and not trained[schema.spans[name]].any():
            continue
        if name not in tensors:
            raise NamesError(f"The update has no tensor {name!r}, which the task trains: push it too.")
        array = _floats(name, tensors[name])
        if array.shape != shape:
            raise ShapeError(f"The update's tensor {name!r} has shape {list(array.shape)}; expected {list(shape)}.")
        found[name] = array
    return found


def end_of(tensors: Tensors, start: np.ndarray, trained: np.ndarray | None, schema: Schema) -> np.ndarray:
    """The result as one vector. Tensors that the task does not train stay at the start."""
    end = start.copy()
    for name, array in fitting(tensors, trained, schema).items():
        end[schema.spans[name]] = array.reshape(-1)
    return end


def _floats(name: str, given: object) -> np.ndarray:
    """Numbers of any width as float32."""
    try:
        array = np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:  # such as a tensor that needs a gradient
        raise DtypeError(f"The update's tensor {name!r} cannot be read as an array: {error}") from None
    if array.dtype.kind not in "fiu":
        raise DtypeError(
            f"The update's tensor {name!r} has dtype {array.dtype}; expected real numbers such as float32."
        )
    with np.errstate(over="ignore"):  # what does not fit becomes Inf, which is not sent
        return array.astype(np.float32, copy=False)
