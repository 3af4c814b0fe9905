"""Runs in Weights & Biases: files of its offline mode, unless ``WANDB_MODE`` says otherwise."""

import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polytempo.core.disk.files import write_bytes
from polytempo.core.disk.reading import read_plain
from polytempo.core.errors import UserError
from polytempo.report.run import Run
from polytempo.track.callback import RunStart
from polytempo.track.tracker import Tracker, extra, settings_of

PROJECT = "polytempo"
STATE = "wandb.json"
"""The file of the run directory with the id of the W&B run, and how many evaluations it has."""


class Wandb(Tracker):
    """One W&B run per run, in the project ``WANDB_PROJECT`` (default polytempo). Offline it lies in the directory
    ``wandb`` of the run directory, and ``wandb sync`` uploads it."""

    def __init__(self) -> None:
        self._wandb = extra("wandb", "wandb")
        self._run: Any = None
        self._id = ""
        self._state: Path | None = None
        self._seen = 0
        """Evaluations that were given to log."""
        self._logged = 0
        """Evaluations that the log has."""

    def _open(self, start: RunStart) -> None:
        self._state = None if start.directory is None else start.directory / STATE
        self._id, self._seen, self._logged = uuid.uuid4().hex[:8], 0, 0
        if start.evaluations and self._state is not None and self._state.exists():
            self._id, self._logged = _known(self._state)
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=start.label,
            id=self._id,
            config=settings_of(start.config),
            dir=None if start.directory is None else str(start.directory),
            mode=os.environ.get("WANDB_MODE", "offline"),
            resume="allow",
            reinit="create_new",
            settings=self._wandb.Settings(
                silent=True, console="off", disable_git=True, save_code=False, x_disable_stats=True, x_disable_meta=True
            ),
        )
        self._run.define_metric("updates")
        self._run.define_metric("*", step_metric="updates")

    def _log(self, step: int, figures: Mapping[str, float]) -> None:
        """W&B counts steps by itself: an evaluation's number. Plots are against the updates."""
        if self._seen >= self._logged:
            self._run.log({**figures, "updates": step}, step=self._seen)
            self._logged = self._seen + 1
            if self._state is not None:
                write_bytes(self._state, json.dumps({"id": self._id, "evaluations": self._logged}).encode() + b"\n")
        self._seen += 1

    def _close(self, run: Run | None) -> None:
        if self._run is None:
            return
        if run is not None:
            self._run.summary.update(dict(run.result))
        self._run.finish(exit_code=0 if run is not None else 1)


def _known(state: Path) -> tuple[str, int]:
    try:
        known = json.loads(read_plain(state))
        return str(known["id"]), int(known["evaluations"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(
            f"The log of this run cannot be continued: {state} cannot be read ({error}). Delete it to begin a new log."
        ) from None
