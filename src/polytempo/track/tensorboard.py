"""Runs in TensorBoard: event files in the directory ``tensorboard`` of the run directory."""

import json
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polytempo.core.errors import UserError
from polytempo.report.run import Run
from polytempo.track.callback import RunStart
from polytempo.track.tracker import Logged, Tracker, extra, final_figures, not_logged, settings_of


class TensorBoard(Tracker):
    """``tensorboard --logdir runs`` shows every run below that directory."""

    def __init__(self) -> None:
        self._events = extra("torch.utils.tensorboard", "tensorboard")
        self._writer: Any = None
        self._logged: Logged = Counter()

    def _open(self, start: RunStart) -> None:
        if start.directory is None:
            raise UserError(
                "track is 'tensorboard', which writes into the run's directory, and there is none. Give out=DIR."
            )
        directory = start.directory / "tensorboard"
        if start.evaluations:
            self._logged = _logged_in(directory)
        else:
            shutil.rmtree(directory, ignore_errors=True)
        self._writer = self._events.SummaryWriter(str(directory))
        if not start.evaluations:
            self._writer.add_text("settings", _as_markdown(settings_of(start.config)))

    def _log(self, step: int, figures: Mapping[str, float]) -> None:
        for name, value in not_logged(self._logged, step, figures).items():
            self._writer.add_scalar(name, value, step)

    def _close(self, run: Run | None) -> None:
        if self._writer is None:
            return
        if run is not None:
            self._writer.add_text("result", _as_markdown(final_figures(run)), run.updates)
        self._writer.close()


def _logged_in(directory: Path) -> Logged:
    """What the event files hold, also those that were cut off."""
    reader = extra("tensorboard.backend.event_processing.event_accumulator", "tensorboard")
    known = reader.EventAccumulator(str(directory), size_guidance={reader.SCALARS: 0})
    known.Reload()
    return Counter((name, event.step) for name in known.Tags()["scalars"] for event in known.Scalars(name))


def _as_markdown(values: Mapping[str, Any]) -> str:
    rows = (f"| {name} | `{json.dumps(value)}` |" for name, value in values.items())
    return "\n".join(["| name | value |", "|---|---|", *rows])
