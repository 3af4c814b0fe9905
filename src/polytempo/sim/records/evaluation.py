"""Evaluation during a run: how well everybody is served, how good their own models are, and whether to stop."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from polytempo.core.events import Update
from polytempo.sim.executors.executor import Executor
from polytempo.sim.personal import PersonalClients
from polytempo.sim.records.history import History, graph_row
from polytempo.sim.records.measures import ClientScores, evaluation_row, score_clients, score_cluster_models, score_rows
from polytempo.sim.records.sketches import Sketches
from polytempo.sim.records.used import UsedRows, checksum
from polytempo.sim.world import World
from polytempo.strategies import Strategy
from polytempo.strategies.base.explaining import explained
from polytempo.world.federation import ClientData

OWN_MODELS_BYTES = 2**28
"""Memory for own models that wait to be scored."""
KEPT_BYTES = 2**29
"""Memory and disk for a model of each client that is kept to the end: past it none is kept."""


@dataclass(frozen=True)
class Stop:
    """When a run ends: whatever comes first. At ``target`` only where ``at_target`` says so."""

    updates: int | None = None
    time: float = math.inf
    target: float | None = None
    at_target: bool = False
    patience: int | None = None
    """Evaluations without a better accuracy."""


class Evaluator:
    """Scores all clients, or a sample of them, writes the row, and judges."""

    def __init__(
        self,
        strategy: Strategy,
        world: World,
        stop: Stop,
        history: History,
        executor: Executor,
        personal: PersonalClients,
    ) -> None:
        self.strategy, self.world, self.stop, self.history, self.executor = strategy, world, stop, history, executor
        self.personal = personal
        self.federation, self.learner = world.federation, world.learner
        self.devices = world.devices if world.sample is None else world.devices.of(world.sample)
        """Of the clients that are evaluated."""
        self._clients = range(len(world.federation)) if world.sample is None else world.sample.tolist()
        self._evaluated = None if world.sample is None else frozenset(self._clients)
        self.evaluated_at = -1
        """Updates at the last evaluation; -1 before the first."""
        self.time_to_target: float | None = None
        self.best: float | None = None
        self.since_best = 0
        self.trained: dict[int, tuple[Tensor, int]] = {}
        """Own models not yet scored, with the generation of their data."""
        self.own: dict[int, Tensor] = {}
        """The last own model of each client, where there is room for all."""
        self.trained_scores = np.full(len(self.federation), np.nan)
        setting = strategy.setting
        drifting = self.federation.drifts is not None
        self.sketches = Sketches(setting.initial, len(self.federation), setting.seed) if drifting else None
        self._last: tuple[Tensor, int, np.ndarray, np.ndarray] | None = None
        """What was scored last, if everybody was served one model: it, torch's count of changes in it (a method should
        not change a vector in place, but should see it when it does), the clients' generations, the scores."""

    def keep(self, update: Update, generation: int) -> None:
        """Remember a client's own model right after its training."""
        if self._evaluated is None or update.client in self._evaluated:
            self.trained[update.client] = (update.weights, generation)
        if self.has_room:
            self.own[update.client] = update.weights
        if self.sketches is not None:
            self.sketches.keep(update.client, self.learner.layers.shared_of(update.weights))
        if 4 * len(self.trained) * self.learner.layers.model.size > OWN_MODELS_BYTES:
            self._score_trained()

    @property
    def has_room(self) -> bool:
        """Is there room for a model of each client?"""
        return 4 * len(self.federation) * self.learner.layers.model.size <= KEPT_BYTES

    def used_models(self, generations: np.ndarray) -> dict[int, Tensor] | None:
        """The model that each client works with now, its private layers among it; None where that is the one it is
        served, or without room."""
        same = self.strategy.personal() is None and not self.learner.layers.names
        if same or not self.has_room:
            return None
        clients = range(len(self.federation))
        used = self._models_used(clients, generations)
        return {client: used(client) for client in clients}

    def evaluate(
        self, now: float, updates: int, generations: np.ndarray, idle: np.ndarray, traffic: dict[str, int]
    ) -> bool:
        """Evaluate everybody; is this the end of the run?"""
        served = self._score_served(generations)
        self._score_trained()
        used = self._score_used(served, generations)
        groups = self._groups(generations)
        trained = self.trained_scores[self._clients]
        scores = ClientScores(served, trained, used, self.world.sample)
        row = evaluation_row(now, updates, scores, idle, self.strategy, groups, self.devices)
        of_clusters = score_cluster_models(
            self.strategy.cluster_models(),
            self.federation.clusters,
            self.federation.dataset,
            self.executor,
        )
        row |= traffic | ({} if of_clusters is None else {"cluster_accuracy": of_clusters})
        self.history.evaluations.append(row)
        graph = self.strategy.collaboration()
        if graph is not None:
            self.history.graphs.append(graph_row(now, updates, graph))
        sketched = None if self.sketches is None else self.sketches.take_row(now, updates)
        if sketched is not None:
            self.history.sketches.append(sketched)
        self.evaluated_at = updates
        return self._judge(row["accuracy_used"], now, updates)

    def _score_served(self, generations: np.ndarray) -> np.ndarray:
        """The score of each client with the model it is served; one model for all that has not changed since the last
        time (in the middle of a synchronous round, say) is not scored again."""
        clients = self._clients
        first = self._model_for(clients[0])
        one_for_all = all(self._model_for(client) is first for client in clients)
        if one_for_all and self._last is not None:
            model, changes, generations_then, scores = self._last
            same_model = first is model and model._version == changes
            if same_model and np.array_equal(generations, generations_then):
                return scores.copy()
        at_once = len(clients) if one_for_all else None
        served = self._score(lambda _: self._model_for, generations, at_once)
        self._last = (first, first._version, generations.copy(), served) if one_for_all else None
        return served

    def _score_used(self, served: np.ndarray, generations: np.ndarray) -> np.ndarray:
        """The score of each client with the model that it works with. Without the personal rule, the one it is
        served."""
        if self.strategy.personal() is None:
            return served
        return self._score(lambda clients: self._models_used(clients, generations), generations)

    def _models_used(self, clients: Sequence[int], generations: np.ndarray) -> Callable[[int], Tensor]:
        """Client -> the model that it works with: without the personal rule, the one it is served."""
        personal = self.strategy.personal()
        if personal is None:
            return self._model_for
        models = self.personal.used(clients, generations, self._model_for, personal, self.executor)
        return dict(zip(clients, models, strict=True)).__getitem__

    def at_the_end(self, generations: np.ndarray) -> tuple[UsedRows, float | None, dict[int, Tensor] | None]:
        """What the models that clients work with do on test rows, their mean score on validation rows, and these models
        where they are kept."""
        return self.used_rows(generations), self.validation(generations), self.used_models(generations)

    def used_rows(self, generations: np.ndarray) -> UsedRows:
        """How the model that each client works with does on each of its test rows now: right or wrong or, where the
        metric says more than that, what it says, negated where higher is better."""
        values = self._score_rows(generations)
        if all(np.isin(one, (0, 1)).all() for one in values):
            values = [one.astype(bool) for one in values]
        else:
            sign = np.float32(-1 if self.learner.metric.higher_is_better else 1)
            values = [sign * one.astype(np.float32) for one in values]
        data = map(self._data_of(generations), self._clients)
        checksums = [checksum(one.test, one.y[one.test]) for one in data]
        return UsedRows.of(values, checksums, self.world.sample, len(self.federation))

    def validation(self, generations: np.ndarray) -> float | None:
        """The mean score of the models that clients work with on their validation rows; None where there are none."""
        data_of = self._data_of(generations)

        def validation_of(client: int) -> ClientData:
            data = data_of(client)
            return data._replace(test=data.validation)

        parts = [[client for client in part if len(data_of(client).validation)] for part in self._in_parts()]
        scores = [
            score_clients(part, self._models_used(part, generations), validation_of, self.executor)
            for part in parts
            if part
        ]
        return float(np.concatenate(scores).mean()) if scores else None

    def _score_rows(self, generations: np.ndarray) -> list[np.ndarray]:
        """For each client what the model that it works with comes to on each of its test rows."""
        data_of = self._data_of(generations)
        parts = [
            score_rows(clients, self._models_used(clients, generations), data_of, self.executor)
            for clients in self._in_parts()
        ]
        return [values for part in parts for values in part]

    def _score(
        self,
        models_for: Callable[[Sequence[int]], Callable[[int], Tensor]],
        generations: np.ndarray,
        at_once: int | None = None,
    ) -> np.ndarray:
        data_of = self._data_of(generations)
        parts = [
            score_clients(clients, models_for(clients), data_of, self.executor) for clients in self._in_parts(at_once)
        ]
        return np.concatenate(parts)

    def _model_for(self, client: int) -> Tensor:
        with explained(self.strategy, f"model_for (client {client})"):
            return self.personal.whole(client, self.strategy.model_for(client))

    def _data_of(self, generations: np.ndarray) -> Callable[[int], ClientData]:
        return lambda client: self.federation.client(client, int(generations[client]))

    def _in_parts(self, at_once: int | None = None) -> list[Sequence[int]]:
        """Clients whose models are scored at once. Not all: there may be a model for each."""
        clients = self._clients
        at_once = at_once or max(1, OWN_MODELS_BYTES // (4 * self.learner.layers.model.size))
        return [clients[begin : begin + at_once] for begin in range(0, len(clients), at_once)]

    def _judge(self, accuracy: float, now: float, updates: int) -> bool:
        metric = self.learner.metric
        reached = self.stop.target is not None and not metric.better(self.stop.target, accuracy)
        if reached and self.time_to_target is None:
            self.time_to_target = now
        better = self.best is None or metric.better(accuracy, self.best)
        self.best, self.since_best = (accuracy, 0) if better else (self.best, self.since_best + 1)
        return (
            updates == self.stop.updates
            or (reached and self.stop.at_target)
            or (self.stop.patience is not None and self.since_best >= self.stop.patience)
        )

    def _score_trained(self) -> None:
        """Score the own models of the clients that have trained since the last time, and let go of them."""
        clients = list(self.trained)
        if clients:
            self.trained_scores[clients] = score_clients(
                clients,
                lambda client: self.trained[client][0],
                lambda client: self.federation.client(client, self.trained[client][1]),
                self.executor,
            )
        self.trained = {}

    def _groups(self, generations: np.ndarray) -> list[int] | None:
        """The clients' true groups, which drifts may change."""
        if self.federation.groups is None:
            return None
        return [int(self.federation.group(client, int(g)) or 0) for client, g in enumerate(generations)]

    _state = ("evaluated_at", "time_to_target", "best", "since_best", "trained", "own", "trained_scores")

    def save_state(self) -> dict[str, Any]:
        sketches = None if self.sketches is None else self.sketches.save_state()
        return {name: getattr(self, name) for name in self._state} | {"sketches": sketches}

    def load_state(self, saved: dict[str, Any]) -> None:
        for name in self._state:
            setattr(self, name, saved[name])
        if self.sketches is not None:
            self.sketches.load_state(saved["sketches"])
