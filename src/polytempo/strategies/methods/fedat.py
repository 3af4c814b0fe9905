"""FedAT: a high-performance and communication-efficient federated learning system with asynchronous tiers (Chai et al.,
2021), with tiers as FedCompass (Li et al., 2024, appendix E.2) makes them for it: by the ratio of response times.

Tiers have no identity. A client carries its last response time, how many rounds its tiers have finished, and the model
of the last of them. Tiers are made anew from the response times when a round has ended and when somebody comes or goes,
and what a tier has is the mean of what its members carry. While tiers stay the same this is the paper's method; when
they change, a client takes its past along. Clients that have not responded yet form a tier of their own, whose round is
the paper's profiling: at the start, one round with everybody who is there. So no tier has a count of 0.

The paper's clients are all there from the start. Here one that joins or returns counts from the end of its first round,
with no fewer rounds than anybody present: with 1 against their 1000 it would have nearly all the weight.

A client that neither hands in nor leaves holds up whoever is in a tier with it, as in the paper."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import torch
from pydantic import Field
from torch import Tensor

from polytempo.core.events import Update
from polytempo.core.orders import Objective, Orders, Train
from polytempo.core.stateful import stateful
from polytempo.strategies.base.strategy import Strategy, strategy
from polytempo.strategies.parts.rounds import weighted_mean
from polytempo.strategies.parts.tiers import tiers


@stateful
@dataclass(eq=False)
class Round:
    """A round of a tier, of which all or some (as participation says) take part. Nobody of the tier begins anything
    else before it ends."""

    tier: dict[int, None]
    began: float
    waiting: dict[int, None]
    """Those that have not handed in."""
    arrived: list[Update] = field(default_factory=list)
    seconds: dict[int, float] = field(default_factory=dict)
    """Response times of those that have."""


@strategy("fedat")
class FedAT(Strategy):
    """FedAvg inside each latency tier, at the tier's own pace, with a proximal term; the global model is
    ``sum_m T_(M+1-m) / T w_m`` over M tiers from fastest to slowest with T_m rounds: who updates least weighs most."""

    ratio: float = Field(2.0, ge=1, description="a tier holds everybody within this factor of its fastest's seconds")
    proximal: float = Field(0.4, ge=0, description="lambda, weight of the proximal term lambda/2 ||w - w_start||^2")

    def setup(self) -> None:
        self.open: list[Round] = []
        self.seconds: dict[int, float] = {}
        """What clients carry: last response time, samples, rounds of their tiers, model of the last of these."""
        self.samples: dict[int, int] = {}
        self.rounds: dict[int, int] = {}
        self.models: dict[int, Tensor] = {}
        self.tiers: list[list[int]] | None = None
        """The members in tiers, those without a response time in the last; None when they have to be made anew."""
        self.tier_of: dict[int, int] = {}

    def joined(self, client: int, now: float) -> Orders:
        self.tiers = None
        return super().joined(client, now)

    def ready(self, client: int, now: float) -> Orders:
        self.participation.rest(client)
        made = self._current_tiers()
        return self._begin_rounds([made[self.tier_of[client]]], now)

    def updated(self, update: Update, now: float) -> Orders:
        round_ = self._round_of(update.client)
        assert round_ is not None
        del round_.waiting[update.client]
        round_.arrived.append(update)
        round_.seconds[update.client] = now - round_.began
        if round_.waiting:
            return None
        self._end(round_)
        return self._begin_rounds(self._current_tiers(), now, about_to_be_ready=update.client)

    def left(self, client: int, now: float) -> Orders:
        self.participation.leave(client)
        self.models.pop(client, None)  # of one that returns it would be old
        self.tiers = None
        round_ = self._round_of(client)
        if round_ is not None:
            del round_.waiting[client]
            if not round_.waiting:
                self._end(round_)
        return self._begin_rounds(self._current_tiers(), now)

    def forget(self, client: int) -> None:
        for round_ in self.open:
            round_.arrived = [update for update in round_.arrived if update.client != client]
            round_.seconds.pop(client, None)
            round_.tier.pop(client, None)
        for kept in (self.seconds, self.samples, self.rounds, self.models):
            kept.pop(client, None)
        super().forget(client)

    def order_for(self, client: int, now: float) -> Train:
        return self.train(client, self.model, objective=Objective(proximal=self.proximal))

    def _round_of(self, client: int) -> Round | None:
        return next((round_ for round_ in self.open if client in round_.waiting), None)

    def _begin_rounds(self, among: Iterable[list[int]], now: float, about_to_be_ready: int | None = None) -> Orders:
        """Every tier begins a round that has nobody in one, nobody about to say ready, and enough idle clients."""
        started: list[int] = []
        for tier in among:
            if not self.participation.could_fill(len(tier)) or about_to_be_ready in tier or self._is_engaged(tier):
                continue
            members = sorted(self.participation.begin_round_among(tier))
            if members:
                self.open.append(Round(dict.fromkeys(tier), now, dict.fromkeys(members)))
                started += members
        return self._start(started, now)

    def _is_engaged(self, tier: Sequence[int]) -> bool:
        return any(client in round_.tier for round_ in self.open for client in tier)

    def _end(self, round_: Round) -> None:
        self.open.remove(round_)
        if not round_.arrived:
            return
        updates = sorted(round_.arrived, key=lambda update: update.client)
        model = weighted_mean((update.weights for update in updates), [update.weight for update in updates])
        self.seconds |= round_.seconds
        self.samples |= {update.client: update.weight or self.samples.get(update.client, 1) for update in updates}
        fewest = min((self.rounds[client] for client in self.models), default=1)
        counted = {**self.participation.members, **round_.seconds}
        for client in round_.tier:
            if client in self.seconds and client in counted:
                self.rounds[client] = max(self.rounds.get(client, 0) + 1, fewest)
                self.models[client] = model
        # Those who handed in and left before the end count once more: nothing that arrived is lost.
        self.model.replace(self._combined(tiers({client: self.seconds[client] for client in self.models}, self.ratio)))
        self.models = {client: kept for client, kept in self.models.items() if client in self.participation.members}
        self.tiers = None

    def _current_tiers(self) -> list[list[int]]:
        if self.tiers is None:
            members = self.participation.members
            measured = {client: self.seconds[client] for client in members if client in self.seconds}
            self.tiers = [*tiers(measured, self.ratio), [client for client in members if client not in measured]]
            self.tier_of = {client: index for index, tier in enumerate(self.tiers) for client in tier}
        return self.tiers

    def _combined(self, made: Sequence[Sequence[int]]) -> Tensor:
        """The global model of these tiers. Clients of a round carry the same vector: it is added once, so that this
        costs one pass over the model per distinct vector, not per client."""
        counts = [fmean(self.rounds[client] for client in tier) for tier in made]
        total = sum(counts)
        parts: dict[int, tuple[Tensor, float]] = {}
        for tier, count in zip(made, reversed(counts), strict=True):
            samples = sum(self.samples[client] for client in tier)
            for client in tier:
                vector = self.models[client]
                _, weight = parts.get(id(vector), (vector, 0.0))
                parts[id(vector)] = vector, weight + count / total * self.samples[client] / samples
        combined = torch.zeros_like(self.setting.initial)
        for vector, weight in parts.values():
            combined.add_(vector, alpha=weight)
        return combined
