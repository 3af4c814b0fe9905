"""A finished run: its settings, its figures, and what happened on the way. Read from a run directory, or built in
memory by whoever drove it."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from polytempo.core.disk.reading import read_npy
from polytempo.core.errors import UserError
from polytempo.learn.metrics import Scale, scale_of
from polytempo.report.facts.arrivals import ArrivedGroup, arrival_groups
from polytempo.report.facts.graph import Graph
from polytempo.report.frames import frame_of, per_client
from polytempo.report.models import client_model, export_models
from polytempo.sim.directory import REGROUPINGS, RESULT, SIMILARITY, SPLITS
from polytempo.sim.kept_models import KeptModels, builder_by_name
from polytempo.sim.records.history import FILES, History
from polytempo.sim.records.used import USED, UsedRows, read_used
from polytempo.sim.result import FIGURES, HasFigures, Result
from polytempo_client.disk.reading import memory_limit, read_plain
from polytempo_client.imports import unknown

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor, nn

Row = Mapping[str, Any]
Model = Literal["served", "own", "used"]
PER_CLIENT = {"served": "per_client", "own": "per_client_trained", "used": "per_client_used"}


@dataclass(frozen=True, eq=False, repr=False)
class Run(HasFigures):
    """One strategy, one seed, from start to end. Every figure of ``result`` is also an attribute (``run.accuracy``).
    None stands for a figure that the run does not have, such as ``time_to_target`` when the target was not reached."""

    config: Row
    """Every setting, and what was used where a setting was left open."""
    result: Result
    history: History = field(default_factory=History)
    splits: Sequence[Row] = ()
    """How clusters came about: one row per split."""
    regroupings: Sequence[Row] = ()
    """One row per expansion or merge of clusters."""
    similarity: np.ndarray | None = None
    """How alike the clients are (clients x clients, NaN where two were never compared). None for a strategy that
    compares nobody."""
    used: UsedRows | None = None
    """How the model that each client uses does on each of its test rows at the end. None of a run of an older
    version."""

    models: KeptModels = field(default_factory=KeptModels)
    """The models of the clients, which ``model`` and ``export`` read."""

    @classmethod
    def load(cls, directory: Path | str) -> "Run":
        """Read a run directory. All but settings, result, evaluations and updates may be missing."""
        directory = Path(directory)
        _must_be_a_run(directory)
        splits, regroupings, similarity, used = (directory / name for name in (SPLITS, REGROUPINGS, SIMILARITY, USED))
        config, result = _read_object(directory / "config.json"), _read_result(directory / RESULT)
        return cls(
            config=config,
            result=result,
            history=_read_history(directory),
            splits=_read_rows(splits) if splits.exists() else (),
            regroupings=_read_rows(regroupings) if regroupings.exists() else (),
            similarity=_read_matrix(similarity) if similarity.exists() else None,
            used=_read_used(used) if used.exists() else None,
            models=_models_in(directory, config, result),
        )

    @property
    def scale(self) -> Scale:
        """The metric's name, its direction, and whether it is a share. ``accuracy`` and its like are in it."""
        return scale_of(self.config)

    @property
    def evaluations(self) -> Sequence[Row]:
        """One row per evaluation."""
        return self.history.evaluations

    @property
    def update_log(self) -> Sequence[Row]:
        """One row per update; ``run.updates`` is their number."""
        return self.history.updates

    @property
    def marks(self) -> Sequence[Row]:
        """One row per other event of a client: refreshes, reports, pulls, drifts, losses, refusals."""
        return self.history.marks

    @property
    def graph_log(self) -> Sequence[Row]:
        """Who learned from whom, one row per evaluation; ``graphs`` and ``graph_at`` read it."""
        return self.history.graphs

    @property
    def sketch_log(self) -> Sequence[Row]:
        """Where data drift, how far the clients' own models are from each other, one row per evaluation."""
        return self.history.sketches

    @property
    def traffic_log(self) -> Sequence[Row]:
        """What travelled, one row per moment."""
        return self.history.traffic

    @property
    def exchange_log(self) -> Sequence[Row]:
        """Where clients ask when they want to, what each got for its update; ``run.exchanges`` is their number."""
        return self.history.exchanges

    def value_of(self, name: str) -> Any:
        return self.result[name]

    def figure(self, name: str) -> float:
        """A number of the result, NaN where it is null."""
        return _number(self.result[name])

    def over_evaluations(self, name: str) -> np.ndarray:
        """One number of every evaluation, in order, NaN where it is null."""
        return np.array([_number(row.get(name)) for row in self.evaluations])

    def over_updates(self, name: str) -> np.ndarray:
        """One number of every update, in order of arrival."""
        return np.array([row[name] for row in self.update_log], dtype=float)

    def over_exchanges(self, name: str) -> np.ndarray:
        """One number of every exchange, in order of time, NaN where it is null."""
        return np.array([_number(row.get(name)) for row in self.exchange_log])

    def final_per_client(self, model: Model = "served") -> np.ndarray:
        """The last accuracy of each client's model, NaN for a client without one: the one it is ``served``, its
        ``own`` right after its last training, or the one that it has ``used``."""
        if model not in PER_CLIENT:
            raise UserError(unknown("model", model, PER_CLIENT))
        known = self.per_client(PER_CLIENT[model], -1)
        if model == "used" and not len(known):  # of an older version, in which clients used what they were served
            return self.final_per_client()
        return known

    def per_client(self, name: str, evaluation: int) -> np.ndarray:
        """A number of every client at one evaluation (-1: the last), NaN where it is null or the client is not
        evaluated; empty if there is none."""
        row = self.evaluations[evaluation] if self.evaluations else {}
        values, sample = row.get(name), row.get("sample")
        known = np.array(() if values is None else values, dtype=float)
        if sample is None or len(known) != len(sample):
            return known
        of_all = np.full(int(self.config["clients"]), np.nan)
        of_all[np.array(sample, int)] = known
        return of_all

    def standard_error(self) -> float | None:
        """Of the accuracy of used models at the end, where it is that of a random sample of the clients: its standard
        deviation over samples of this size, drawn without replacement. None where all clients are evaluated."""
        sample = self.evaluations[-1].get("sample") if self.evaluations else None
        if sample is None or len(sample) < 2:
            return None
        used, clients = self.final_per_client("used"), self.clients()
        spread = float(np.nanstd(used, ddof=1))
        return spread * math.sqrt((1 - len(sample) / clients) / len(sample))

    def clients(self) -> int:
        """How many clients there are, also those that never handed in an update."""
        highest = max((int(row["client"]) for row in self.update_log), default=-1)
        return max(int(self.config.get("clients") or 0), len(self.final_per_client()), highest + 1)

    def model(
        self, client: int, which: str = "used", module: "nn.Module | None" = None
    ) -> "nn.Module | dict[str, Tensor]":
        """A client's model at the end: the one that it has ``used``, is ``served``, or its ``own`` right after its last
        training. It is a module in evaluation mode: ``module`` with the weights in it, or a new one. A run that was
        read from a directory does not import code: where its model is an import path, you get the state dict, or give
        the module."""
        return client_model(self.models, client, which, module)

    def export(self, directory: Path | str, which: str = "used") -> Path:
        """Write each client's model into a new directory as safetensors that plain PyTorch loads."""

        about = {"strategy": self.strategy, "seed": self.seed}
        export_models(self.models, Path(directory), which, about)
        return Path(directory)

    def frame(self) -> Any:
        """One row per evaluation: every number that it has one of, such as time, updates and accuracies. A pandas
        DataFrame where pandas is installed, otherwise a dict of numpy arrays."""
        return frame_of(self.evaluation_rows())

    def updates_frame(self) -> Any:
        """The same with one row per update, in order of arrival."""
        return frame_of(self.update_rows())

    def clients_frame(self) -> Any:
        """The same with one row per client: how it stands at the last evaluation, and what it handed in."""
        return frame_of(self.client_rows())

    def evaluation_rows(self) -> Sequence[Row]:
        """The rows of ``frame``, which may hold more than numbers; figures of the metric have its name."""
        return list(map(self._named_by_metric, self.evaluations))

    def update_rows(self) -> Sequence[Row]:
        """The rows of ``updates_frame``."""
        return self.update_log

    def client_rows(self) -> Sequence[Row]:
        """The rows of ``clients_frame``; figures of the metric have its name."""
        last = {name: self.per_client(f"per_client_{name}", -1) for name in ("idle", "cluster", "group")}
        of, clients = self.over_updates("client").astype(int), self.clients()
        updates = np.bincount(of, minlength=clients).astype(float)
        steps = np.bincount(of, self.over_updates("steps"), clients)
        stale = np.bincount(of, self.over_updates("staleness"), clients)
        rows = per_client(
            {
                "accuracy_served": self.final_per_client(),
                "accuracy_own": self.final_per_client("own"),
                "accuracy_used": self.final_per_client("used"),
                "idle_share": last["idle"],
                "cluster": last["cluster"],
                "group": last["group"],
                "updates": updates,
                "steps": steps,
                "mean_staleness": np.divide(stale, updates, where=updates > 0, out=np.full(clients, np.nan)),
            }
        )
        return list(map(self._named_by_metric, rows))

    def _named_by_metric(self, row: Row) -> Row:
        metric = self.scale.name
        return {name.replace("accuracy", metric): value for name, value in row.items()}

    def arrival_groups(self) -> list[ArrivedGroup]:
        """The groups in which clients were planned to arrive together, by number; empty for a method that plans no
        arrivals. A client's first update belongs to none: its speed was not known. A training in flight at
        the end of the run is left out."""
        return arrival_groups(self.update_log, self.marks)

    def graphs(self) -> list[Graph]:
        """Who learned from whom at every evaluation; empty for a method without a collaboration graph."""
        clients = self.clients()
        return [Graph(row["time"], row["updates"], clients, row["rows"]) for row in self.graph_log]

    def graph_at(self, time: float) -> Graph:
        """Who learned from whom at a virtual time: as the last evaluation by then saw it."""
        known = self.graphs()
        if not known:
            raise UserError(f"{self.strategy} has no collaboration graph: choose a method that has one, such as pace.")
        if not time >= known[0].time:
            raise UserError(
                f"There is no collaboration graph at {time:g} s of virtual time: expected a time from "
                f"{known[0].time:g} s on (the run ends at {known[-1].time:,.6g} s)."
            )
        return [graph for graph in known if graph.time <= time][-1]

    def has_clusters(self) -> bool:
        """Did some clients ever share a model that others did not have?"""
        if not len(self.per_client("per_client_cluster", -1)):
            return False
        clusters = self.over_evaluations("clusters")
        return bool(self.splits or self.regroupings) or bool(np.any((clusters > 1) & (clusters < self.clients())))

    def summary(self) -> str:
        """One readable line: who, how good, how long."""
        metric, shown = self.scale.name, self.scale.shown
        accuracy = f"{metric} {shown(self.figure('accuracy'))}" if self.accuracy is not None else f"{metric} unknown"
        if self.accuracy_used is not None and self.accuracy_used != self.accuracy:
            accuracy = f"used {metric} {shown(self.figure('accuracy_used'))}, served {shown(self.figure('accuracy'))}"
        fifth = self.accuracy_slowest_fifth
        slowest = f" (slowest fifth {shown(fifth)})" if fifth is not None else ""
        reached = f", target reached at {self.time_to_target:,.1f} s" if self.time_to_target is not None else ""
        after = f"after {self.updates or 0:,} updates in {self.virtual_time or 0:,.1f} virtual seconds"
        tryout = f", tryout won by {self.tryout_winner}" if self.tryout_winner is not None else ""
        return f"{self.strategy}, seed {self.seed}: {accuracy}{slowest} {after}{reached}{tryout}"

    def __repr__(self) -> str:
        return f"<Run {self.summary()}>"

    def _repr_html_(self) -> str:
        """As the value of a notebook's cell."""
        from polytempo.report.notebook import run_html

        return run_html(self)

    def kinds(self) -> list[str]:
        """The names of the figures that ``plot`` draws."""
        from polytempo.report import (
            figures,  # here, because matplotlib is slow to load, and most runs are never plotted
        )

        return figures.kinds([self])

    def plot(self, path: Path | str | None = None, *, kind: str = "overview", width: str = "page") -> "Figure":
        """A figure of the run's report by name, saved if a path is given. By default accuracy against virtual time and
        updates, staleness, and who trained when. ``width`` is ``page``, or that of one (``single``) or both
        (``double``) columns of a paper."""
        from polytempo.report import figures

        return figures.plot([self], kind, path, width)


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _must_be_a_run(directory: Path) -> None:
    if not directory.is_dir():
        raise UserError(
            f"{directory} is not a directory: expected a run directory, as `polytempo run --out DIR` writes it"
        )
    needed = ("config.json", "result.json", "evaluations.jsonl", "updates.jsonl")
    missing = [name for name in needed if not (directory / name).is_file()]
    if missing == ["result.json"]:
        raise UserError(f"the run in {directory} has no result.json yet: let it finish, or resume it")
    if missing:
        raise UserError(
            f"{directory} is not a run directory, it has no {', '.join(missing)}: "
            "give a directory that `polytempo run --out DIR` wrote"
        )


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_plain(path))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): is it a plain file that you may read?") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON ({error}): was the file edited or cut short? Run it again") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} holds a {type(value).__name__}, expected one JSON object: run it again")
    return value


def _read_rows(path: Path) -> list[dict[str, Any]]:
    try:
        lines = read_plain(path, memory_limit()).decode().splitlines()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): is it a plain file that you may read?") from None
    except ValueError as error:
        raise UserError(f"{path} cannot be read ({error}): was it edited or cut short? Run it again") from None
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
            if type(rows[-1]) is not dict:
                raise ValueError("no object")
        except (ValueError, RecursionError):
            raise UserError(f"{path}, line {number}, is not valid JSON: was it cut short? Resume the run") from None
    return rows


def _read_result(path: Path) -> Result:
    """The figures of a run. An older version may have written fewer; its clients used what they were served."""
    figures = _read_object(path)
    figures.setdefault("accuracy_used", figures.get("accuracy"))
    return Result(**{name: figures.get(name) for name in FIGURES})


def _read_history(directory: Path) -> History:
    """Every log that is there; those of runs without such events have no file."""
    history = History()
    for name in FILES:
        path = directory / f"{name}.jsonl"
        getattr(history, name).extend(_read_rows(path) if path.exists() else ())
    history.exchanges = list(map(_with_shares, history.exchanges))
    for row in history.evaluations:  # of an older version, in which clients used what they were served
        row.setdefault("accuracy_used", row.get("accuracy"))
    return history


def _models_in(directory: Path, config: Row, result: Result) -> KeptModels:
    resolved = config.get("resolved") or {}
    as_served = resolved.get("used_is_served", result.accuracy_used == result.accuracy)
    return KeptModels(directory=directory, build=builder_by_name(config), used_is_served=as_served)


def _with_shares(exchange: Row) -> dict[str, Any]:
    """An exchange with both mixtures as arrays, as the simulator has them; null stays None."""
    shares = {name: exchange.get(name) for name in ("mixture", "estimate")}
    return {**exchange, **{name: None if of is None else np.array(of, float) for name, of in shares.items()}}


def _read_matrix(path: Path) -> np.ndarray:
    try:
        return read_npy(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is no array ({error}): was it cut short? Run it again") from None


def _read_used(path: Path) -> UsedRows:
    try:
        return read_used(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): was it cut short? Run it again") from None
