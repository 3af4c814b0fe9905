"""Simulated clients that follow a personal rule: their juries, their memories, and the models that they use."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polytempo.core.model.vectors import tensor_of
from polytempo.core.orders import Train
from polytempo.learn.learner import Assignment, forward_steps
from polytempo.learn.rules import rule_of
from polytempo.sim.executors.executor import Executor
from polytempo.sim.executors.work import Judging
from polytempo.sim.memories import Memories
from polytempo.sim.world import World
from polytempo_client.personal.jury import Rows, deal, fingerprints, jury_key
from polytempo_client.personal.rule import ClientMemory
from polytempo_client.personal.told import JuryScores, Personal


class PersonalClients:
    """All clients of a world, as far as personal rules are concerned."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.memories = Memories()
        self._keys: dict[int, int] = {}

    def anew(self) -> "PersonalClients":
        """The same clients, with nothing in memory."""
        return PersonalClients(self._world)

    def rows_and_forward_steps(self, order: Train, generation: int) -> tuple[int, float]:
        """How many rows a client trains on, and what its forward passes beside training cost, in steps."""
        if not rule_of(order.personal).has_jury:
            rows = self._world.federation.samples(order.client, generation)
            return rows, forward_steps(order, rows)
        dealt = self.dealt(order.client, generation)
        return len(dealt.train), forward_steps(order, len(dealt.train), dealt, self.memories[order.client])

    def steps_ahead(self, assignment: Assignment) -> float:
        """Training steps of the client's rule before its first local step."""
        learner = self._world.learner
        return rule_of(assignment.order.personal).steps_ahead(learner, learner.layers.at_client(assignment))

    def with_memory(self, assignment: Assignment, generation: int) -> Assignment:
        """The same assignment, with what the client needs for an order that is personal, or for its private layers."""
        order = assignment.order
        if order.personal is None and self._world.learner.layers.private is None:
            return assignment
        assignment = replace(assignment, memory=self.memories[order.client])
        if not rule_of(order.personal).has_jury:
            return assignment
        dealt = self.dealt(order.client, generation)
        return replace(assignment, rows=dealt.train, dealt=dealt)

    def keep(self, client: int, memory: ClientMemory | None) -> None:
        """What the client remembers from now on, if that has changed."""
        if memory is not None:
            self.memories.keep(client, memory)

    def dealt(self, client: int, generation: int) -> Rows:
        """How the client deals the rows that it has now to training and jury."""
        data = self._world.federation.client(client, generation)
        key = self._keys.setdefault(client, jury_key(self._world.seed, client))
        labels = fingerprints(data.y[data.train])
        return deal(data.train, self._world.fingerprints[data.train], labels, key, self.memories[client])

    def whole(self, client: int, served: Tensor) -> Tensor:
        """The served model with the client's private layers, where there are some."""
        return self._world.learner.layers.whole(served, self.memories[client])

    def used(
        self,
        clients: Sequence[int],
        generations: np.ndarray,
        served_to: Callable[[int], Tensor],
        personal: Personal,
        executor: Executor,
    ) -> list[Tensor]:
        """For each client the model that it works with, its private layers among it, when it would be served the one
        that ``served_to`` says."""
        rule, models = rule_of(personal), {client: served_to(client) for client in clients}
        memories = {client: memory for client in clients if (memory := self.memories[client]) is not None}
        scores: dict[int, JuryScores] = {}
        if rule.has_jury:
            judgings = [
                self._judging(client, int(generations[client]), memory, models[client])
                for client, memory in memories.items()
            ]
            scores = dict(zip(memories, executor.evaluate(judgings), strict=True))
        for client, memory in memories.items():
            served = models[client].numpy()
            models[client] = tensor_of(rule.used(memory, served, personal, partial(scores.__getitem__, client)))
        return [models[client] for client in clients]

    def _judging(self, client: int, generation: int, memory: ClientMemory, served: Tensor) -> Judging:
        labels = torch.from_numpy(self._world.federation.client(client, generation).y)
        dealt = self.dealt(client, generation)
        return Judging(memory.average, served, dealt.jury, labels, dealt.changed)

    def save_state(self) -> dict[str, Any]:
        return self.memories.save_state()

    def load_state(self, saved: dict[str, Any]) -> None:
        self.memories.load_state(saved)
