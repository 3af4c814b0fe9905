"""Runs in Weights & Biases: files of its offline mode, unless ``WANDB_MODE`` says otherwise."""

import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polytempo.core.errors import UserError
from polytempo.report.run import Run
from polytempo.track.callback import RunStart
from polytempo.track.tracker import Tracker, extra, settings_of
from polytempo.track.wandb_files import logged_steps
from polytempo_client.disk.files import write_bytes
from polytempo_client.disk.reading import read_plain

PROJECT = "polytempo"
STATE = "wandb.json"
"""The file of the run directory with the id of the W&B run."""


class Wandb(Tracker):
    """One W&B run per run, in the project ``WANDB_PROJECT`` (default polytempo). Offline it lies in the directory
    ``wandb`` of the run directory, and ``wandb sync`` uploads it."""

    def __init__(self) -> None:
        self._wandb = extra("wandb", "wandb")
        self._run: Any = None
        self._seen = 0
        """Evaluations that were given to log."""
        self._logged: set[int] = set()
        """The numbers of those that earlier processes logged."""

    def _open(self, start: RunStart) -> None:
        self._seen, run_id = 0, uuid.uuid4().hex[:8]
        if start.directory is not None:
            state = start.directory / STATE
            if start.evaluations and state.exists():
                run_id = _known_id(state)
            self._logged = logged_steps(start.directory / "wandb", run_id)
            write_bytes(state, json.dumps({"id": run_id}).encode() + b"\n")
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=start.label,
            id=run_id,
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
        if self._seen not in self._logged:
            self._run.log({**figures, "updates": step}, step=self._seen)
        self._seen += 1

    def _close(self, run: Run | None) -> None:
        if self._run is None:
            return
        if run is not None:
            self._run.summary.update({name.replace("accuracy", self.metric): of for name, of in run.result.items()})
        self._run.finish(exit_code=0 if run is not None else 1)


def _known_id(state: Path) -> str:
    try:
        return str(json.loads(read_plain(state))["id"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(
            f"The log of this run cannot be continued: {state} cannot be read ({error}). Delete it to begin a new log."
        ) from None
