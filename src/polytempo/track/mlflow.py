"""Runs in MLflow: in the store that MLflow is set to (``MLFLOW_TRACKING_URI``)."""

import json
import logging
import os
import re
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polytempo.core.errors import UserError
from polytempo.report.run import Run
from polytempo.track.callback import Row, RunStart
from polytempo.track.tracker import Logged, Tracker, extra, final_figures, not_logged, settings_of
from polytempo_client.disk.files import write_bytes
from polytempo_client.disk.reading import read_plain

EXPERIMENT = "polytempo"
STATE = "mlflow.json"
"""The file of the run directory that names the MLflow run."""
LONGEST = 500  # characters of a parameter's value that every store takes


class Mlflow(Tracker):
    """One MLflow run per run, in the experiment ``MLFLOW_EXPERIMENT_NAME`` (default polytempo): settings as parameters,
    evaluations as metrics, the report as an artifact. Runs that your own code has open in MLflow are left alone."""

    def __init__(self) -> None:
        self._mlflow = extra("mlflow", "mlflow")
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # it tells how it makes a new store
        self._client: Any = None
        self._run_id = ""
        self._directory: Path | None = None
        self._logged: Logged = Counter()

    def _open(self, start: RunStart) -> None:
        self._client, self._directory = self._mlflow.MlflowClient(), start.directory
        state = None if self._directory is None else self._directory / STATE
        if start.evaluations and state is not None and state.exists():
            self._go_on(state)
            return
        self._run_id = self._begin(start)
        if state is not None:
            write_bytes(state, json.dumps({"run_id": self._run_id}).encode() + b"\n")

    def _begin(self, start: RunStart) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        known = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if known is None else known.experiment_id
        run_id: str = self._client.create_run(experiment, run_name=start.label).info.run_id
        entities = self._mlflow.entities
        settings = _texts(settings_of(start.config))
        parameters = [entities.Param(name, text) for name, text in settings.items()]
        for first in range(0, len(parameters), 100):  # as many as a store takes at once
            self._client.log_batch(run_id, params=parameters[first : first + 100])
        return run_id

    def _go_on(self, state: Path) -> None:
        """With the MLflow run that the run directory names, and what it holds already."""
        try:
            run_id = json.loads(read_plain(state))["run_id"]
            metrics = self._client.get_run(run_id).data.metrics
        except (OSError, ValueError, LookupError, TypeError, self._mlflow.MlflowException) as error:
            raise UserError(
                f"The log of this run cannot be continued: {state} names no run of {self._mlflow.get_tracking_uri()} "
                f"({error}). Set MLFLOW_TRACKING_URI as it was when the run began, or delete the file to begin a new "
                "log."
            ) from None
        self._run_id = run_id
        self._client.update_run(run_id, status="RUNNING")
        histories = {name: self._client.get_metric_history(run_id, name) for name in metrics}
        self._logged = Counter((name, metric.step) for name, history in histories.items() for metric in history)

    def _log(self, step: int, figures: Mapping[str, float]) -> None:
        named = {_name(name): value for name, value in figures.items()}
        now = int(1000 * time.time())
        metric = self._mlflow.entities.Metric
        missing = not_logged(self._logged, step, named)
        self._client.log_batch(
            self._run_id, metrics=[metric(name, value, now, step) for name, value in missing.items()]
        )

    def _close(self, run: Run | None) -> None:
        if not self._run_id:
            return
        if run is not None:
            self._log(run.updates, final_figures(run))
            if self._directory is not None:
                self._client.log_artifact(self._run_id, str(self._directory / "report.html"))
        self._client.set_terminated(self._run_id, "FINISHED" if run is not None else "KILLED")


def _texts(settings: Row) -> dict[str, str]:
    texts = {
        _name(name): value if isinstance(value, str) else json.dumps(value, default=str)
        for name, value in settings.items()
    }
    return {name: text[:LONGEST] for name, text in texts.items()}


def _name(name: str) -> str:
    """As MLflow allows it."""
    return re.sub(r"[^\w\-. /]", "_", name)
