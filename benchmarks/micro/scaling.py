"""What an event costs, and what an idle client weighs, as the number of clients grows (tiny model).

    python benchmarks/micro/scaling.py

Bars: the cost per event grows no faster than log(clients) from 100 to 100,000 clients; at most 2 kB per idle client
beside its index list."""

import math
import time
import tracemalloc

import numpy as np
import torch
from torch import nn

from polytempo.core.orders import Work
from polytempo.learn.flat import initial_vector
from polytempo.learn.learner import Learner
from polytempo.sim.executors.threads import Threads
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

EVENTS = 4_000


def build(clients: int) -> Simulator:
    """FedAsync with ten clients in training at once, on a model of six numbers."""
    rng = np.random.default_rng(0)
    rows = 5 * clients
    dataset = Dataset("tiny", rng.random((rows, 2), np.float32), rng.integers(0, 2, rows), 2, rows)
    module = nn.Sequential(nn.Linear(2, 2))
    learner = Learner(module)
    strategy = FedAsync()
    work = Work(steps=1, epochs=None, batch_size=2, lr=0.01)
    strategy.begin(Setting(initial_vector(module), learner.schema, work, Quota(count=10)))
    federation = make_federation(dataset, "iid", clients, seed=0)
    world = World(federation, make_devices("slow:0.3x5", clients, seed=0), learner)
    return Simulator(strategy, world, Stop(updates=EVENTS), 10**9, Threads(world.worker(), 1), History())


def seconds_per_event(clients: int) -> float:
    """Without the first events, in which everybody joins."""
    simulator = build(clients)
    began = 0.0

    def after_event() -> None:
        nonlocal began
        if simulator.updates == EVENTS // 2:
            began = time.perf_counter()
        elif simulator.updates == EVENTS - 1:
            simulator.stop_clock = time.perf_counter()  # type: ignore[attr-defined]

    simulator.run(after_event)
    return (simulator.stop_clock - began) / (EVENTS // 2 - 1)  # type: ignore[attr-defined]


def bytes_per_idle_client() -> float:
    sizes = []
    for clients in (1_000, 21_000):
        tracemalloc.start()
        simulator = build(clients)
        simulator.evaluator.stop = Stop(updates=5)
        simulator.run()
        given = simulator.federation
        own = sum(a.nbytes for a in (given.train_idx, given.test_idx, given.dataset.x, given.dataset.y))
        sizes.append(tracemalloc.get_traced_memory()[0] - own)
        tracemalloc.stop()
        del simulator, given
    return (sizes[1] - sizes[0]) / 20_000


def main() -> None:
    torch.set_num_threads(1)
    counts = (100, 1_000, 10_000, 100_000)
    rounds = [[seconds_per_event(clients) for clients in counts] for _ in range(3)]
    costs = np.median(np.array(rounds), axis=0)
    print("cost per event (one update: arrival, aggregation, dispatch, training of one step)")
    for clients, cost in zip(counts, costs, strict=True):
        allowed = math.log(clients) / math.log(counts[0])
        print(f"  {clients:>7,} clients: {cost * 1e6:6.0f} us, {cost / costs[0]:.2f}x of 100 (bar {allowed:.2f}x)")
    print(f"memory per idle client beside its index list: {bytes_per_idle_client():,.0f} bytes (bar 2,048)")


if __name__ == "__main__":
    main()
