"""What an event costs the simulator when results are there at once, and what clients weigh that do nothing.

    python benchmarks/micro/scaling.py [--most 1000000] [--repeats 3]

An event is an update with all that follows from it: its arrival, the strategy's answer, the next order. No training is
computed, so the figure is what one driver can feed to a cluster. It is CPU time, so that other programs hardly change
it. Bars: 100 us for a model of six numbers and 200 us for the 784-100-10 mlp, from 100 to 1,000,000 clients, growing no
faster than log(clients); 400 bytes per idle client beside its rows."""

import argparse
import math
import time
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polytempo.core.events import Update
from polytempo.core.orders import Work
from polytempo.core.threads import one_thread
from polytempo.learn.flat import initial_vector
from polytempo.learn.learner import CarriedOut, Learner
from polytempo.sim.executors.executor import Executor
from polytempo.sim.executors.lookahead import Queued
from polytempo.sim.records.evaluation import Stop
from polytempo.sim.records.history import History
from polytempo.sim.simulator import Simulator
from polytempo.sim.world import World
from polytempo.strategies import Setting
from polytempo.strategies.base.participation import Quota
from polytempo.strategies.methods.fedasync import FedAsync
from polytempo.world.dataset import Dataset
from polytempo.world.devices import make_devices
from polytempo.world.partitions import make_federation

UPDATES = 20_000
TOGETHER = 1000
"""Clients in training at once, at most."""
MODELS = {
    "six numbers": lambda: nn.Sequential(nn.Linear(2, 2)),
    "mlp, 79,510 numbers": lambda: nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10)),
}
BARS = {"six numbers": 100, "mlp, 79,510 numbers": 200}
"""Microseconds."""


class Instant(Executor):
    """Knows the result of every computation: some random model, and that nobody is right."""

    def __init__(self, size: int) -> None:
        super().__init__(1, 1)
        self._open: dict[object, Any] = {}
        self._trained: list[Tensor] = list(torch.randn(16, size).unbind())

    def submit(self, key: object, arrival: float, computation: Any) -> None:
        self._open[key] = computation

    def cancel(self, key: object) -> None:
        del self._open[key]

    def fetch(self, key: object) -> CarriedOut:
        assignment = self._open.pop(key)
        order, weights = assignment.order, self._trained[assignment.count % len(self._trained)]
        update = Update(order.client, order.version, order.weights, weights, len(assignment.rows), assignment.steps)
        return CarriedOut(update, weights)

    def evaluate(self, computations: Sequence[Any]) -> list[Any]:
        return [np.zeros(len(scoring.rows), np.float32) for scoring in computations]

    def close(self) -> None:
        """There is nobody to let go of."""

    def _stir(self) -> None:
        """There is nobody to wake."""

    def _wait(self, queued: Queued) -> None:
        """Nothing is ever waited for."""


def build(clients: int, model: str, updates: int) -> Simulator:
    """FedAsync, five rows of two features per client."""
    rng = np.random.default_rng(0)
    rows = 5 * clients
    dataset = Dataset("tiny", rng.random((rows, 2), np.float32), rng.integers(0, 2, rows), 2, rows)
    module = MODELS[model]()
    learner = Learner(module)
    strategy = FedAsync()
    work = Work(steps=1, epochs=None, batch_size=2, lr=0.01)
    initial = initial_vector(module)
    strategy.begin(Setting(initial, learner.schema, work, Quota(count=min(TOGETHER, clients // 10))))
    federation = make_federation(dataset, "iid", clients, seed=0)
    world = World(federation, make_devices("slow:0.3x5", clients, seed=0), learner)
    return Simulator(strategy, world, Stop(updates=updates), 10**9, Instant(len(initial)), History())


def seconds_per_event(clients: int, model: str) -> float:
    """Of CPU time, without the first events, in which everybody joins."""
    simulator = build(clients, model, UPDATES)
    moments: dict[int, float] = {}

    def after_event() -> None:
        if simulator.updates in (UPDATES // 2, UPDATES - 1):
            moments.setdefault(simulator.updates, time.thread_time())

    simulator.run(after_event)
    first, last = moments.items()
    return (last[1] - first[1]) / (last[0] - first[0])


def bytes_per_idle_client() -> float:
    sizes = []
    for clients in (1_000, 1_000, 21_000):  # the first brings along what is made once
        tracemalloc.start()
        simulator = build(clients, "six numbers", 5)
        simulator.run()
        given = simulator.federation
        own = sum(a.nbytes for a in (given.train_idx, given.test_idx, given.dataset.x, given.dataset.y))
        sizes.append(tracemalloc.get_traced_memory()[0] - own)
        tracemalloc.stop()
        del simulator, given
    return (sizes[2] - sizes[1]) / 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=1_000_000, help="clients at most")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    counts = [count for count in (100, 10_000, 1_000_000) if count <= options.most]
    with one_thread():
        for model, bar in BARS.items():
            rounds = [[seconds_per_event(clients, model) for clients in counts] for _ in range(options.repeats)]
            costs = np.median(np.array(rounds), axis=0)
            print(f"cost per event, {model} (bar {bar} us); medians of {options.repeats}")
            for clients, cost in zip(counts, costs, strict=True):
                allowed = math.log(clients) / math.log(counts[0])
                grown = f"{cost / costs[0]:.2f} times that of 100 (bar {allowed:.2f})"
                print(f"  {clients:>9,} clients: {cost * 1e6:4.0f} us, {1 / cost:6,.0f} updates/s, {grown}", flush=True)
        print(f"memory per idle client beside its rows: {bytes_per_idle_client():,.0f} bytes (bar 400)")


if __name__ == "__main__":
    main()
