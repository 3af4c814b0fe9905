"""What one hostile client does to a service, with the defences of version 0.2 (none but the norm bound, which followed
the model), with the defaults, and with robust mixing too; and what the defaults cost when nobody attacks. Requests pass
through the wire format, checks and journal of a real service; only the network is left out.

    python benchmarks/service/attack_poisoning.py [--seeds 3] [--only attacks|clean] [--norm-bound 10] [--data digits]

Eleven clients train on their own data, one of which is the attacker. It claims 10^9 samples and sends an update that is
as long as the norm bound allows, either in a random direction or against what it trained. "late" attackers are honest
for the first turns; "first" ones attack before anybody else hands in. In a turn every client hands in once.
"""

import argparse
import logging
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polytempo.learn.learner import Assignment
from polytempo.serve.journal.settings import make_settings
from polytempo.serve.server.checks import LARGEST_NORM
from polytempo.serve.server.operations import Operations
from polytempo.sim.experiment import make_experiment
from polytempo.sim.world import World, make_world
from polytempo.testing.hosting import BARE, Hosted, hosted
from polytempo_client.streams import stream

HONEST = 10
ATTACKER = HONEST
TURNS = 15
"""Before a late attack, ..."""
ATTACKS = 20
"""... of an attack that goes on, in turns or, where it comes first, before anybody else hands in, ..."""
HEALING = 15
"""... and honest ones after the attack."""
CLAIM = 10**9
DEFENCES: dict[str, dict[str, Any]] = {"0.2": BARE, "defaults": {}, "+ median:10": {"robust": "median:10"}}
PARTITIONS = ("iid", "dirichlet:0.5", "groups:3")


@dataclass(frozen=True)
class Attack:
    """When, how often, and in which direction."""

    first: bool
    times: int
    flipped: bool

    def __str__(self) -> str:
        when, direction = "first" if self.first else "late", "flipped" if self.flipped else "random"
        return f"{when}, {'once' if self.times == 1 else f'{self.times} times'}, {direction}"


ALL_ATTACKS = [Attack(first, times, flipped) for first in (False, True) for times in (1, ATTACKS) for flipped in (0, 1)]


class Federation:
    """A service and its clients, on data that are dealt out among them."""

    def __init__(self, served: Hosted, world: World, old_bound: bool, seed: int) -> None:
        self.served, self.world, self.old_bound = served, world, old_bound
        self.random = stream(seed, "attack")
        for client in reversed(range(HONEST + 1)):  # the attacker first: it may have a first round for itself
            served.hello(client)
            served.ready(client)

    def turn(self, attack: Attack | None = None) -> None:
        """Everybody who has a task hands in: a first attacker before the others, a late one anywhere among them."""
        order = [int(client) for client in self.random.permutation(HONEST + 1)]
        if attack is not None and attack.first:
            order = [ATTACKER, *(client for client in order if client != ATTACKER)]
        for client in order:
            self.hand_in(client, attack if client == ATTACKER else None)

    def hand_in(self, client: int, attack: Attack | None = None) -> bool:
        """Has the client a task to hand in?"""
        flight = self.served.host.service.flights.get(client)
        if flight is None:
            return False
        start, weights, samples = flight.order.weights, self._trained(client), len(self._rows(client))
        steps = flight.order.work.steps_for(samples)
        if attack is not None:
            weights, samples = start + self._hostile(start, weights, attack.flipped), CLAIM
        self.served.push(client, weights=weights, samples=samples, steps=steps)  # from a ruined model: NaN, refused
        return True

    def accuracy(self) -> float:
        """Mean accuracy in % on the honest clients' own test data."""
        data, model, learner = self.world.federation, self.served.host.service.strategy.model_for, self.world.learner
        shares = []
        for client in range(HONEST):
            rows, labels = data.client(client).test, torch.from_numpy(data.client(client).y)
            shares.append(float(np.mean(learner.scorer.metric(model(client), self.world.x, labels[rows], rows))))
        return 100 * float(np.mean(shares))

    def _rows(self, client: int) -> np.ndarray:
        return self.world.federation.client(client).train

    def _trained(self, client: int) -> Tensor:
        flight, rows = self.served.host.service.flights[client], self._rows(client)
        labels = torch.from_numpy(self.world.federation.client(client).y)
        steps = flight.order.work.steps_for(len(rows))
        work = Assignment(flight.order, self.world.x, labels, rows, steps, flight.count, self.world.seed)
        return self.world.learner.carry_out(work).update.weights

    def _hostile(self, start: Tensor, trained: Tensor, flipped: bool) -> Tensor:
        """A delta just inside the norm bound."""
        initial = self.served.host.service.setting.initial_norm
        if self.old_bound:  # 10 times the norm of the start, wherever that has gone
            bound = 10 * max(float(start.norm()), 1.0) / initial
            self.served.shared.operations = self.served.operations.model_copy(update={"norm_bound": bound})
        farthest = min(self.served.shared.operations.bound(initial).distance, LARGEST_NORM)
        noise = torch.from_numpy(self.random.normal(size=len(start)).astype(np.float32))
        delta = start - trained if flipped else noise
        return delta * (0.99 * farthest / float(delta.norm()))


def attacked(federation: Federation, attack: Attack) -> tuple[float, float, float]:
    """The accuracy before the attack, after it, and when honest clients have gone on."""
    if attack.first:
        before = federation.accuracy()
        done = sum(federation.hand_in(ATTACKER, attack) for _ in range(attack.times))
        federation.turn()
        for _ in range(attack.times - done):  # of a method whose next round waits for the others
            federation.turn(attack)
    else:
        for _ in range(TURNS):
            federation.turn()
        before = federation.accuracy()
        for _ in range(attack.times):
            federation.turn(attack)
    after = federation.accuracy()
    for _ in range(HEALING):
        federation.turn()
    return before, after, federation.accuracy()


def clean(federation: Federation) -> float:
    for _ in range(TURNS + HEALING):
        federation.turn()
    return federation.accuracy()


def with_service(method: str, partition: str, defence: str, seed: int, given: argparse.Namespace, act: Any) -> Any:
    """What ``act`` makes of a new service."""
    about: dict[str, Any] = {"strategy": method, "data": given.data, "data_dir": given.data_dir, "seed": seed}
    experiment = make_experiment(**about, clients=HONEST + 1, partition=partition)
    world, _ = make_world(experiment, experiment.make())
    with tempfile.TemporaryDirectory() as directory:
        settings = make_settings(**about, **DEFENCES[defence])
        with hosted(Path(directory), settings=settings, operations=Operations(norm_bound=given.norm_bound)) as served:
            return act(Federation(served, world, defence == "0.2", seed))


def show(cells: Iterable[str]) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=("attacks", "clean"))
    parser.add_argument("--norm-bound", type=float, default=10.0, help="of service.toml")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--data-dir", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    if given.only != "clean":
        show(["method", "attack", *(f"{name}: before, after, healed" for name in DEFENCES)])
        for method in ("fedavg", "fedasync"):
            for attack in ALL_ATTACKS:
                show([method, str(attack), *(_attacked_cell(method, attack, name, given) for name in DEFENCES)])
    if given.only != "attacks":
        show(["method", "partition", *DEFENCES])
        for method in ("fedavg", "fedasync"):
            for partition in PARTITIONS:
                show([method, partition, *(_clean_cell(method, partition, name, given) for name in DEFENCES)])


def _attacked_cell(method: str, attack: Attack, defence: str, given: argparse.Namespace) -> str:
    found = [
        with_service(method, "iid", defence, seed, given, lambda federation: attacked(federation, attack))
        for seed in range(given.seeds)
    ]
    return ", ".join(f"{value:.1f}" for value in np.mean(found, axis=0))


def _clean_cell(method: str, partition: str, defence: str, given: argparse.Namespace) -> str:
    found = [with_service(method, partition, defence, seed, given, clean) for seed in range(given.seeds)]
    return f"{np.mean(found):.1f} ± {np.std(found):.1f}"


if __name__ == "__main__":
    sys.exit(main())
