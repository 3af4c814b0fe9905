"""Run an experiment: build the world, simulate, keep a run directory, go on from a checkpoint."""

import math
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from polytempo.core.errors import UserError
from polytempo.core.splits import Regrouping, Split
from polytempo.core.state import digest, save
from polytempo.core.threads import one_thread
from polytempo.sim.agenda import Kind
from polytempo.sim.directory import (
    CHECKPOINT,
    RESULT,
    claimed,
    config_of,
    prepare,
    write_clusters,
    write_json,
    write_models,
)
from polytempo.sim.executors import make_executor
from polytempo.sim.executors.cluster import connected
from polytempo.sim.experiment import Experiment
from polytempo.sim.kept_models import KeptModels, builder, inputs_row, kept_models
from polytempo.sim.records.evaluation import Stop
from polytempo.sim.records.exchanges import exchange_figures
from polytempo.sim.records.history import History, Row
from polytempo.sim.records.measures import cluster_figures, device_figures
from polytempo.sim.records.used import UsedRows, write_used
from polytempo.sim.result import Result
from polytempo.sim.simulator import Simulator
from polytempo.sim.watcher import Watcher
from polytempo.sim.world import begun_with, inputs_of, make_world, proxy_sets_of, warm_up
from polytempo.strategies import Strategy


@dataclass(frozen=True)
class Progress:
    """Where a run stands."""

    updates: int
    share: float
    """How much of the run is done, 0 to 1, as far as its updates or its virtual time say."""
    time: float
    accuracy: float
    """Of the models that clients use, or what the metric says of them."""
    metric: str = "accuracy"


@dataclass(frozen=True)
class Finished:
    """A run's settings, figures and history, and how its clusters came about."""

    config: dict[str, Any]
    result: Result
    history: History
    splits: list[Row]
    regroupings: list[Row]
    similarity: np.ndarray | None
    """How alike the clients are (clients x clients), where the strategy knows it."""
    used: UsedRows | None = None
    """How the models that clients use do on each of their test rows."""
    models: KeptModels = field(default_factory=KeptModels)
    """The clients' models: in memory or, where the run has a directory, there."""


@dataclass
class _Clock:
    """Wall time of a run, over interruptions."""

    wall: float = 0.0
    training: float = 0.0
    working: float = 0.0


def run_experiment(
    experiment: Experiment,
    directory: Path | None = None,
    progress: Callable[[Progress], None] | None = None,
    checkpoint_seconds: float = 30.0,
    objects: Mapping[str, Any] | None = None,
    watcher: Watcher | None = None,
) -> Finished:
    """Simulate to the end. With a directory, leave a run there; a run that was cut off there goes on from its last
    checkpoint and ends as if nothing had happened. The watcher looks on until the last event."""
    history, clock = History(), _Clock()
    with one_thread(), connected(experiment.executor, experiment.workers):
        simulator = _build(experiment, history, objects or {})
        config = config_of(experiment, simulator.strategy)
        with claimed(directory):
            if directory is not None:
                clock = _resume(simulator, directory, config)
            if watcher is not None:
                watcher.begin(_complete(config, experiment, simulator), history, directory)
            _simulate(simulator, clock, directory, progress, checkpoint_seconds, watcher)
            finished = _finished(experiment, simulator, clock, config)
            if directory is not None:
                finished = _written(finished, simulator, directory)
    _warn_of_drifts_to_come(simulator)
    return finished


def _resume(simulator: Simulator, directory: Path, config: dict[str, Any]) -> _Clock:
    """Go on from the checkpoint in the directory, if there is one; the time spent until then."""
    saved = prepare(directory, config)
    simulator.personal.memories.open(directory)
    simulator.history.open(directory, None if saved is None else saved["rows"])
    if saved is None:
        return _Clock()
    if saved.get("frozen", "") != simulator.learner.schema.frozen:
        raise UserError(
            f"The run in {directory} was begun with other frozen weights than the model {config['model']} loads now. "
            "Choose another --out, or delete it to begin anew."
        )
    simulator.load_state(saved["simulator"])
    return _Clock(*saved["clock"])


def _finished(experiment: Experiment, simulator: Simulator, clock: _Clock, config: dict[str, Any]) -> Finished:
    complete, clients = _complete(config, experiment, simulator), len(simulator.federation)
    build = builder(experiment, inputs_of(simulator.federation.dataset))
    return Finished(
        complete,
        _result(experiment, simulator, clock),
        simulator.history,
        [_split_row(split) for split in simulator.strategy.splits()],
        [_regrouping_row(regrouping) for regrouping in simulator.strategy.regroupings()],
        _similarity(simulator.strategy, clients),
        simulator.used,
        KeptModels(kept_models(simulator), build=build, used_is_served=complete["resolved"]["used_is_served"]),
    )


def _written(finished: Finished, simulator: Simulator, directory: Path) -> Finished:
    """The same run when it lies in its directory, its models there only."""
    finished.history.flush()
    write_json(directory / "config.json", finished.config)
    write_models(directory, finished.models.held)
    write_clusters(directory, finished.splits, finished.regroupings, finished.similarity)
    if finished.used is not None:
        write_used(directory, finished.used)
    write_json(directory / RESULT, dict(finished.result))  # last but for the checkpoint: what makes a run finished
    (directory / CHECKPOINT).unlink(missing_ok=True)
    simulator.personal.memories.clear()
    return replace(finished, models=replace(finished.models, held={}, directory=directory))


def _build(experiment: Experiment, history: History, objects: Mapping[str, Any]) -> Simulator:
    strategy = experiment.make()
    world, initial = make_world(experiment, strategy)
    clients = len(world.federation)
    initial, given = begun_with(experiment, proxy_sets_of(experiment, world), initial, objects)
    stop = _stop(experiment, clients)
    experiment.begin(strategy, initial, world.learner.schema, stop.updates, given)
    executor = make_executor(experiment.executor, world.worker(), experiment.workers)
    return Simulator(strategy, world, stop, experiment.eval_every or clients, executor, history)


def _stop(experiment: Experiment, clients: int) -> Stop:
    bounded = experiment.updates is not None or experiment.time is not None
    updates = experiment.updates if bounded else (20 if experiment.target is None else 200) * clients
    return Stop(
        updates,
        math.inf if experiment.time is None else experiment.time,
        experiment.target,
        at_target=not bounded if experiment.stop_at_target is None else experiment.stop_at_target,
        patience=experiment.patience,
    )


def _simulate(
    simulator: Simulator,
    clock: _Clock,
    directory: Path | None,
    progress: Callable[[Progress], None] | None,
    checkpoint_seconds: float,
    watcher: Watcher | None,
) -> None:
    """Run, and between events save checkpoints, show progress and let the watcher look. Adds the time spent to the
    clock."""
    before = _Clock(clock.wall, clock.training, clock.working)
    began = saved_at = shown_at = time.perf_counter()

    def read_clock() -> None:
        spent = simulator.executor.spent()
        clock.wall = before.wall + time.perf_counter() - began
        clock.training = before.training + spent.training_cpu
        clock.working = before.working + spent.working_wall

    def checkpoint() -> None:
        if directory is not None:
            read_clock()
            rows = simulator.history.flush()
            frozen = simulator.learner.schema.frozen
            state = {"simulator": simulator.save_state(), "rows": rows, **({"frozen": frozen} if frozen else {})}
            save(state | {"clock": (clock.wall, clock.training, clock.working)}, directory / CHECKPOINT)
            simulator.personal.memories.drop_files()

    def after_event() -> None:
        nonlocal saved_at, shown_at
        now = time.perf_counter()
        simulator.history.write_full()
        if interrupted:
            checkpoint()
            raise KeyboardInterrupt
        if now - saved_at >= checkpoint_seconds:
            checkpoint()
            saved_at = time.perf_counter()
        if progress is not None and now - shown_at >= 0.1:
            progress(_standing(simulator))
            shown_at = now
        if watcher is not None:
            with _kept(checkpoint):
                watcher.look(simulator.history)

    with _ctrl_c_noted() as interrupted:
        simulator.run(after_event)
    read_clock()


@contextmanager
def _kept(checkpoint: Callable[[], None]) -> Iterator[None]:
    """An error of whoever looks on is not to cost the run."""
    try:
        yield
    except UserError:
        checkpoint()
        raise


def _standing(simulator: Simulator) -> Progress:
    stop = simulator.stop
    share = max(simulator.updates / (stop.updates or math.inf), simulator.now / stop.time)
    metric = simulator.learner.metric.name
    used = simulator.history.evaluations[-1]["accuracy_used"]
    return Progress(simulator.updates, share, simulator.now, used, metric)


@contextmanager
def _ctrl_c_noted() -> Iterator[list[int]]:
    """Ctrl-C only makes a note, so that the run can stop between two events; the second one stops it at once."""
    noted: list[int] = []

    def note(number: int, frame: object) -> None:
        if noted:
            raise KeyboardInterrupt
        noted.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield noted
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


def _result(experiment: Experiment, simulator: Simulator, clock: _Clock) -> Result:
    last = simulator.history.evaluations[-1]
    staleness = [row["staleness"] for row in simulator.history.updates]
    regrouped = [regrouping.kind for regrouping in simulator.strategy.regroupings()]
    kinds = ("trained", "used", "std", "slowest_fifth", "fastest_fifth")
    figures = ("accuracy", *(f"accuracy_{kind}" for kind in kinds))
    return Result(
        strategy=experiment.strategy,
        seed=experiment.seed,
        **{name: last[name] for name in figures},
        accuracy_validation=simulator.validation,
        **device_figures(last["per_client_used"], simulator.evaluator.devices),
        virtual_time=simulator.now,
        time_to_target=simulator.evaluator.time_to_target,
        updates=simulator.updates,
        refused=simulator.refused,
        client_steps=simulator.client_steps,
        wall_seconds=clock.wall,
        train_seconds=clock.training,
        overhead_seconds=max(clock.wall - clock.working, 0.0),
        **simulator.traffic.figures(simulator.now),
        **exchange_figures(simulator.history.exchanges),
        **cluster_figures(last),
        refreshes=sum(mark["kind"] == "refresh" for mark in simulator.history.marks),
        mean_staleness=float(np.mean(staleness)) if staleness else 0.0,
        idle_share=last["idle_share"],
        clusters=last["clusters"],
        expansions=regrouped.count("expansion"),
        merges=regrouped.count("merge"),
        purity=last["purity"],
        ari=last["ari"],
        epsilon=simulator.uploads.epsilon(int(simulator.clients.updates.max())),
        held_back=simulator.strategy.held_back,
        tryout_winner=simulator.strategy.tryout_winner,
        digest=digest(simulator.strategy.save_state(), simulator.history.evaluations, simulator.history.updates),
    )


def _split_row(split: Split) -> Row:
    """A split as the row that its file holds."""
    return {
        "time": float(split.time),
        "cluster": int(split.cluster),
        "parts": [int(part) for part in split.parts],
        "members": [[int(client) for client in part] for part in split.members],
        "why": {name: float(figure) for name, figure in split.why.items()},
    }


def _regrouping_row(regrouping: Regrouping) -> Row:
    """A regrouping as the row that its file holds."""
    return {
        "time": float(regrouping.time),
        "kind": regrouping.kind,
        "source": int(regrouping.source),
        "target": int(regrouping.target),
        "clients": [int(client) for client in regrouping.clients],
        "why": {name: float(figure) for name, figure in regrouping.why.items()},
    }


def _similarity(strategy: Strategy, clients: int) -> np.ndarray | None:
    """What the strategy knows, for all clients: it may not have met the last ones yet."""
    known = strategy.similarity()
    if known is None:
        return None
    matrix = np.full((clients, clients), np.nan, np.float32)
    matrix[: len(known), : len(known)] = known
    return matrix


def _complete(config: dict[str, Any], experiment: Experiment, simulator: Simulator) -> dict[str, Any]:
    """The configuration with what was used where the settings leave it open."""
    return config | {"clients": len(simulator.federation), "resolved": _resolved(experiment, simulator)}


def _resolved(experiment: Experiment, simulator: Simulator) -> dict[str, Any]:
    """What was used where the settings leave it open."""
    clusters = simulator.federation.clusters
    return {
        "epochs": experiment.work().epochs,
        "updates": simulator.stop.updates,
        "eval_every": simulator.eval_every,
        "engine": type(simulator.learner.engine).__name__,
        "metric": simulator.learner.metric.scale(),
        **({} if experiment.executor == "threads" else {"executor": experiment.executor}),
        "workers": simulator.executor.workers,
        "inputs": inputs_row(inputs_of(simulator.federation.dataset)),
        "used_is_served": simulator.strategy.personal() is None and not simulator.learner.layers.names,
        **(
            {"proxies": [len(cluster.proxy) for cluster in clusters], "warm_up": warm_up(experiment)}
            if clusters
            else {}
        ),
        **({"frozen": simulator.learner.schema.frozen} if simulator.learner.schema.frozen else {}),
        **({"personal_layers": simulator.learner.layers.names} if simulator.learner.layers.names else {}),
        **({"attackers": simulator.uploads.attackers} if experiment.attack is not None else {}),
        **simulator.strategy.resolved(),
    }


def _warn_of_drifts_to_come(simulator: Simulator) -> None:
    missed = simulator.agenda.times(Kind.DRIFT)
    if missed:
        warnings.warn(
            f"{len(missed)} changes of clients' data never happened: the run ended at {simulator.now:,.0f} s of "
            f"virtual time, the first of them was to come at {min(missed):,.0f} s.",
            stacklevel=3,
        )
