"""Callbacks by name: trackers, and one's own by import path."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from polytempo.core.errors import UserError
from polytempo.core.given import described
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


def make_callbacks(callbacks: Sequence[Callback | str], trackers: str | Sequence[str]) -> list[Callback]:
    """The callbacks of one run: objects as they are, import paths and trackers by name made anew."""
    if isinstance(callbacks, Callback) or not isinstance(callbacks, Iterable):
        raise UserError(f"callbacks is {described(callbacks)}. Expected a list of callbacks, or of their import paths.")
    own = [import_callback(one) if isinstance(one, str) else one for one in callbacks]
    return [*own, *make_trackers([trackers] if isinstance(trackers, str) else trackers)]


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
