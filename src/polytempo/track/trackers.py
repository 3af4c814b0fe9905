"""Callbacks by name: trackers, and one's own by import path."""

from collections.abc import Callable, Mapping, Sequence

from polytempo.core.errors import UserError
from polytempo.track.callback import Callback
from polytempo.track.mlflow import Mlflow
from polytempo.track.tensorboard import TensorBoard
from polytempo.track.tracker import Tracker
from polytempo.track.wandb import Wandb
from polytempo_client.imports import from_import_path, unknown

TRACKERS: Mapping[str, Callable[[], Tracker]] = {"tensorboard": TensorBoard, "mlflow": Mlflow, "wandb": Wandb}


def make_trackers(names: Sequence[str]) -> list[Callback]:
    """A tracker for each name."""
    for name in names:
        if name not in TRACKERS:
            raise UserError(unknown("tracker", str(name), TRACKERS))
    return [TRACKERS[name]() for name in dict.fromkeys(names)]


def make_callbacks(paths: Sequence[str], trackers: Sequence[str]) -> list[Callback]:
    """One's own callbacks by import path, and trackers by name."""
    return [*map(import_callback, paths), *make_trackers(trackers)]


def import_callback(path: str) -> Callback:
    """The callback behind an import path: an object, or a class or function that is called without arguments."""
    found = from_import_path(path, "callback")
    if callable(found) and not isinstance(found, Callback):
        try:
            found = found()
        except Exception as error:
            raise UserError(f"callback {path!r} cannot be made: {type(error).__name__}: {error}.") from error
    if not isinstance(found, Callback):
        raise UserError(
            f"callback {path!r} is of type {type(found).__name__}. Expected a class derived from "
            "polytempo.Callback, or an object of one (docs/guides/trackers.md)."
        )
    return found
