"""A finished run: its settings, its figures, and what happened on the way. Read from a run directory, or built in
memory by whoever drove it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np

from polytempo.core.errors import UserError
from polytempo.report.facts.collaboration import Graph
from polytempo.sim.directory import REGROUPINGS, SIMILARITY, SPLITS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

T = TypeVar("T")
Row = Mapping[str, Any]


class _Figure(Generic[T]):
    """An attribute that reads the figure of its own name from the run's result."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, run: "Run", owner: type | None = None) -> T:
        return run.result.get(self.name) if run is not None else self  # type: ignore[return-value]


class Arrived(NamedTuple):
    """A client's part in an arrival group: its steps, when they were dispatched and when they arrived."""

    client: int
    steps: int
    began: float
    arrived: float


@dataclass(frozen=True)
class ArrivedGroup:
    """Clients that were planned to arrive together: when they were expected, how long the server waited at most, the
    members that did arrive, the first one first, and those that were awaited in vain, in the order in which their
    trainings were lost."""

    number: int
    expected: float
    latest: float
    arrivals: list[Arrived]
    lost: list[int]

    def late(self) -> list[Arrived]:
        """The members that came after the latest time, when the group had been aggregated without them."""
        return [member for member in self.arrivals if member.arrived > self.latest]


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """One strategy, one seed, from start to end. Every figure of ``result`` is also an attribute (``run.accuracy``);
    accuracies are shares from 0 to 1, times are virtual seconds unless the name says otherwise, and None stands for a
    figure that the run does not have (``time_to_target`` when the target was not reached). ``run.updates`` is the
    number of updates; ``update_log`` has one row for each. ``run.clusters`` is the number of clusters at the end;
    ``splits`` and ``regroupings`` say how they came about, one row per split and per expansion or merge, and
    ``similarity`` (clients x clients, NaN where two were never compared) how alike the clients are, None for a method
    that compares nobody. ``graphs`` and ``graph_at`` say who learned from whom, ``sketch_log`` where data drift how far
    the clients' own models are from each other, ``traffic_log`` what travelled, one row per moment, and
    ``exchange_log``, where clients ask when they want to, what each got for its update; ``run.exchanges`` is how many
    there were."""

    config: Row
    result: Row
    evaluations: Sequence[Row] = ()
    update_log: Sequence[Row] = ()
    marks: Sequence[Row] = ()
    splits: Sequence[Row] = ()
    similarity: np.ndarray | None = None
    graph_log: Sequence[Row] = ()
    regroupings: Sequence[Row] = ()
    sketch_log: Sequence[Row] = ()
    traffic_log: Sequence[Row] = ()
    exchange_log: Sequence[Row] = ()

    strategy = _Figure[str]()
    seed = _Figure[int]()
    accuracy = _Figure[float]()
    accuracy_trained = _Figure[float | None]()
    accuracy_std = _Figure[float]()
    accuracy_slowest_fifth = _Figure[float]()
    accuracy_fastest_fifth = _Figure[float]()
    accuracy_slowest_device = _Figure[float]()
    accuracy_fastest_device = _Figure[float]()
    accuracy_per_device = _Figure[Mapping[str, float] | None]()
    virtual_time = _Figure[float]()
    time_to_target = _Figure[float | None]()
    updates = _Figure[int]()
    client_steps = _Figure[int]()
    wall_seconds = _Figure[float]()
    train_seconds = _Figure[float]()
    overhead_seconds = _Figure[float]()
    bytes_up = _Figure[int]()
    bytes_down = _Figure[int]()
    uploads = _Figure[int]()
    downloads = _Figure[int]()
    uploads_per_minute = _Figure[float | None]()
    downloads_per_minute = _Figure[float | None]()
    peak_up = _Figure[int | None]()
    peak_down = _Figure[int | None]()
    downloads_ratio = _Figure[float | None]()
    multicasts = _Figure[int]()
    refreshes = _Figure[int]()
    mean_staleness = _Figure[float | None]()
    idle_share = _Figure[float]()
    clusters = _Figure[int | None]()
    expansions = _Figure[int]()
    merges = _Figure[int]()
    purity = _Figure[float | None]()
    ari = _Figure[float | None]()
    epsilon = _Figure[float | None]()
    exchanges = _Figure[int]()
    accuracy_before = _Figure[float | None]()
    accuracy_after = _Figure[float | None]()
    mixture_kl = _Figure[float | None]()
    mixture_kl_uniform = _Figure[float | None]()
    cluster_accuracy = _Figure[float | None]()
    cluster_accuracies = _Figure[Sequence[float] | None]()
    bytes_per_exchange = _Figure[float | None]()
    digest = _Figure[str]()

    @classmethod
    def load(cls, directory: Path | str) -> "Run":
        """Read a run directory. All but settings, result, evaluations and updates may be missing."""
        directory = Path(directory)
        _must_be_a_run(directory)
        marks, splits = directory / "marks.jsonl", directory / SPLITS
        similarity, graphs = directory / SIMILARITY, directory / "graphs.jsonl"
        regroupings, sketches = directory / REGROUPINGS, directory / "sketches.jsonl"
        traffic, exchanges = directory / "traffic.jsonl", directory / "exchanges.jsonl"
        return cls(
            config=_read_object(directory / "config.json"),
            result=_read_object(directory / "result.json"),
            evaluations=_read_rows(directory / "evaluations.jsonl"),
            update_log=_read_rows(directory / "updates.jsonl"),
            marks=_read_rows(marks) if marks.exists() else (),
            splits=_read_rows(splits) if splits.exists() else (),
            similarity=_read_matrix(similarity) if similarity.exists() else None,
            graph_log=_read_rows(graphs) if graphs.exists() else (),
            regroupings=_read_rows(regroupings) if regroupings.exists() else (),
            sketch_log=_read_rows(sketches) if sketches.exists() else (),
            traffic_log=_read_rows(traffic) if traffic.exists() else (),
            exchange_log=list(map(_with_shares, _read_rows(exchanges))) if exchanges.exists() else (),
        )

    def figure(self, name: str) -> float:
        """A number of the result, NaN where it is null."""
        return _number(self.result.get(name))

    def over_evaluations(self, name: str) -> np.ndarray:
        """One number of every evaluation, in order, NaN where it is null."""
        return np.array([_number(row.get(name)) for row in self.evaluations])

    def over_updates(self, name: str) -> np.ndarray:
        """One number of every update, in order of arrival."""
        return np.array([row[name] for row in self.update_log], dtype=float)

    def over_exchanges(self, name: str) -> np.ndarray:
        """One number of every exchange, in order of time, NaN where it is null."""
        return np.array([_number(row.get(name)) for row in self.exchange_log])

    def final_per_client(self) -> np.ndarray:
        """The last accuracy of each client's served model, NaN for a client without one."""
        return self.per_client("per_client", -1)

    def per_client(self, name: str, evaluation: int) -> np.ndarray:
        """A number of every client at one evaluation (-1: the last), NaN where it is null; empty if there is none."""
        row = self.evaluations[evaluation] if self.evaluations else {}
        values = row.get(name)
        return np.array(() if values is None else values, dtype=float)

    def clients(self) -> int:
        """How many clients there are, also those that never handed in an update."""
        highest = max((int(row["client"]) for row in self.update_log), default=-1)
        return max(int(self.config.get("clients") or 0), len(self.final_per_client()), highest + 1)

    def arrival_groups(self) -> list[ArrivedGroup]:
        """The groups in which clients were planned to arrive together, by number; empty for a method that plans no
        arrivals. A client's first update belongs to none: its speed was not known. A training in flight at
        the end of the run is left out."""
        groups: dict[int, ArrivedGroup] = {}

        def group_of(row: Row) -> ArrivedGroup:
            number = row["arrival_group"]
            return groups.setdefault(number, ArrivedGroup(number, row["expected"], row["latest"], [], []))

        for update in filter(_is_planned, self.update_log):
            arrived = Arrived(update["client"], update["steps"], update["began"], update["time"])
            group_of(update).arrivals.append(arrived)
        for mark in filter(_is_planned, self.marks):
            group_of(mark).lost.append(mark["client"])
        return [groups[number] for number in sorted(groups)]

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
        accuracy = f"accuracy {self.figure('accuracy'):.1%}" if self.accuracy is not None else "accuracy unknown"
        fifth = self.accuracy_slowest_fifth
        slowest = f" (slowest fifth {fifth:.1%})" if fifth is not None else ""
        reached = f", target reached at {self.time_to_target:,.1f} s" if self.time_to_target is not None else ""
        after = f"after {self.updates or 0:,} updates in {self.virtual_time or 0:,.1f} virtual seconds"
        return f"{self.strategy}, seed {self.seed}: {accuracy}{slowest} {after}{reached}"

    def __repr__(self) -> str:
        return f"<Run {self.summary()}>"

    def plot(self, path: Path | str | None = None) -> "Figure":
        """Accuracy against virtual time and updates, staleness, and who trained when; saved if a path is given."""
        # matplotlib is slow to load, and most runs are never plotted
        from polytempo.report.drawing import canvas, figures

        figure = figures.overview(self)
        if path is not None:
            canvas.save(figure, Path(path))
        return figure


def _is_planned(row: Row) -> bool:
    return row.get("arrival_group") is not None


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
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON ({error}): was the file edited or cut short? Run it again") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} holds a {type(value).__name__}, expected one JSON object: run it again")
    return value


def _read_rows(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except ValueError:
            raise UserError(f"{path}, line {number}, is not valid JSON: was it cut short? Resume the run") from None
    return rows


def _with_shares(exchange: Row) -> Row:
    """An exchange with both mixtures as arrays, as the simulator has them; null stays None."""
    shares = {name: exchange.get(name) for name in ("mixture", "estimate")}
    return {**exchange, **{name: None if of is None else np.array(of, float) for name, of in shares.items()}}


def _read_matrix(path: Path) -> np.ndarray:
    try:
        matrix: np.ndarray = np.load(path)
    except ValueError as error:
        raise UserError(f"{path} is no array ({error}): was it cut short? Run it again") from None
    return matrix
