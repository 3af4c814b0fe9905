"""Callbacks are told of what is new in a run, in order, and answer for their own exceptions."""

import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from polytempo.core.errors import UserError
from polytempo.report.run import Run
from polytempo.sim.records.history import History
from polytempo.strategies.base.explaining import own_stack
from polytempo.track.callback import Callback, CallbackError, Row, RunStart


class Callbacks:
    """The callbacks of one run, as a context: whoever leaves it with an exception stops them."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        for position, callback in enumerate(callbacks):
            if not isinstance(callback, Callback):
                raise UserError(
                    f"callbacks[{position}] is {_described(callback)}. Expected an object of a class derived from "
                    "polytempo.Callback (docs/guides/trackers.md)."
                )
        self._callbacks = tuple(callbacks)
        self._told = 0
        """Updates that callbacks know."""
        self._evaluated = 0
        """Evaluations that they know."""

    def begin(self, config: Mapping[str, Any], history: History, directory: Path | None) -> None:
        self._told, self._evaluated = len(history.updates), len(history.evaluations)
        for callback in self._callbacks:
            known = list(map(_copy, history.evaluations)), list(map(_copy, history.updates))
            with _answering(callback, "on_begin"):
                callback.on_begin(RunStart(_copy(config), directory, *known))

    def look(self, history: History) -> None:
        """Tell what is new. An evaluation comes after the updates that it counts."""
        if not self._callbacks:
            return
        while self._evaluated < len(history.evaluations):
            row = history.evaluations[self._evaluated]
            self._tell_updates(history, row["updates"])
            self._evaluated += 1
            for callback in self._callbacks:
                with _answering(callback, f"on_evaluation (after {row['updates']:,} updates)"):
                    callback.on_evaluation(_copy(row))
        self._tell_updates(history, len(history.updates))

    def end(self, run: Run) -> None:
        """Tell what is left, and that the run is finished."""
        self.look(run.history)
        for callback in self._callbacks:
            with _answering(callback, "on_end"):
                callback.on_end(run)

    def __enter__(self) -> "Callbacks":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        for callback in self._callbacks:
            try:
                with _answering(callback, "on_stop"):
                    callback.on_stop()
            except CallbackError as further:  # what stopped the run says more
                warnings.warn(str(further), stacklevel=2)

    def _tell_updates(self, history: History, until: int) -> None:
        while self._told < until:
            row = history.updates[self._told]
            self._told += 1
            for callback in self._callbacks:
                with _answering(callback, f"on_update (update {self._told:,}, of client {row['client']})"):
                    callback.on_update(_copy(row))


@contextmanager
def _answering(callback: Callback, when: str) -> Iterator[None]:
    """Let what a callback raises say whose it is and when, with the end of the callback's own stack."""
    try:
        yield
    except UserError:  # says by itself what to do
        raise
    except (Exception, SystemExit) as error:
        raised = "".join(traceback.format_exception_only(error)).strip()
        raise CallbackError(f"Callback {_named(callback)} fails at {when}: {raised}\n{own_stack(error)}") from error


def _named(callback: Callback) -> str:
    return f"{type(callback).__module__}.{type(callback).__qualname__}"


def _described(given: object) -> str:
    return f"the class {given.__name__}" if isinstance(given, type) else f"of type {type(given).__name__}"


def _copy(row: Row) -> dict[str, Any]:
    return {name: _copied(value) for name, value in row.items()}


def _copied(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Mapping):
        return _copy(value)
    return [_copied(one) for one in value] if isinstance(value, list) else value
