"""What a Ray cluster costs beside threads, and how many of its workers one driver can feed.

    python benchmarks/micro/executors.py [--workers 2] [--repeats 3] [--most 32]

First FedAsync with 100 clients on the 784-100-10 mlp, with as many local steps as a training takes in 2, 20 and 200
ms: the share of their time in which the workers of this machine train, on threads and on Ray by turns. Then workers
that sleep in place of training, each time given and giving back a model of that size: how many of them a driver on this
machine keeps busy. All workers are processes of this machine, so that their own work competes with the driver's."""

import argparse
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polytempo.core.orders import Work
from polytempo.core.threads import one_thread
from polytempo.learn.learner import make_learner
from polytempo.learn.models import Inputs
from polytempo.sim.executors import make_executor
from polytempo.sim.executors.cluster import connected
from polytempo.sim.executors.executor import Executor
from polytempo.sim.records.evaluation import Stop
from polytempo.sim.records.history import History
from polytempo.sim.simulator import Simulator
from polytempo.sim.world import World
from polytempo.strategies import Setting, make_strategy
from polytempo.world.dataset import Dataset
from polytempo.world.devices import make_devices
from polytempo.world.partitions import make_federation

MILLISECONDS = (2, 20, 200)
SECONDS = 6.0
"""Of training in a run, on all workers together."""
MODEL = 79_510
"""Numbers in the mlp."""
BUSY = 0.9


# Training.


class Trained:
    """FedAsync on random images of MNIST's size."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        images = rng.random((20_000, 1, 28, 28), np.float32)
        self.dataset = Dataset("random", images, rng.integers(0, 10, len(images)), 10, len(images))
        inputs = Inputs(self.dataset.x.shape[1:], 10, None)
        self.learner, self.initial = make_learner("mlp", inputs, 0, probe=self.dataset.samples_to_try())
        federation = make_federation(self.dataset, "iid", 100, seed=0)
        self.world = World(federation, make_devices("slow:0.3x5", 100, seed=0), self.learner)

    def simulator(self, steps: int, updates: int, executor: Executor) -> Simulator:
        strategy = make_strategy("fedasync", {})
        work = Work(steps=steps, epochs=None, batch_size=10, lr=0.01)
        strategy.begin(Setting(self.initial, self.learner.schema, work))
        return Simulator(strategy, self.world, Stop(updates=updates), 10**9, executor, History())

    def measure(self, steps: int, updates: int, word: str, workers: int) -> tuple[float, float]:
        """The share of their time in which workers train, and updates per second: without the first fifth, in which
        processes begin."""
        executor = make_executor(word, self.world.worker(), workers)
        simulator = self.simulator(steps, updates, executor)
        readings: list[tuple[float, float, int]] = []

        def after_event() -> None:
            if simulator.updates == (updates // 5 if not readings else updates - 1) and len(readings) < 2:
                readings.append((time.perf_counter(), executor.spent().training_cpu, simulator.updates))

        simulator.run(after_event)
        wall, trained, made = np.subtract(readings[1], readings[0])
        return trained / wall / workers, made / wall


def steps_for(trained: Trained, milliseconds: int) -> int:
    """As many as take so long."""
    steps, updates = 100, 40
    executor = make_executor("threads", trained.world.worker(), 1)
    trained.simulator(steps, updates, executor).run()
    return max(1, round(milliseconds / 1000 * steps * updates / executor.spent().training_cpu))


def show_training(workers: int, repeats: int) -> None:
    trained = Trained()
    print(f"FedAsync, 100 clients, mlp, {workers} workers: share of their time in training; medians of {repeats}")
    for milliseconds in MILLISECONDS:
        steps = steps_for(trained, milliseconds)
        updates = max(150, round(SECONDS * 1000 / milliseconds))
        found: dict[str, list[tuple[float, float]]] = {"threads": [], "ray": []}
        for _ in range(repeats):
            for word in found:
                found[word].append(trained.measure(steps, updates, word, workers))
        share = {word: median(one for one, _ in of) for word, of in found.items()}
        rate = {word: median(one for _, one in of) for word, of in found.items()}
        ratio = median(ray / threads for (_, ray), (_, threads) in zip(found["ray"], found["threads"], strict=True))
        print(
            f"  {milliseconds:3} ms ({steps:5} steps): threads {share['threads']:4.0%}, ray {share['ray']:4.0%}; "
            f"updates/s {rate['threads']:6.0f} and {rate['ray']:6.0f}, ratio {ratio:.2f}",
            flush=True,
        )


# Sleeping.


@dataclass(frozen=True)
class Nap:
    """In place of a training: it takes a model and gives another one."""

    seconds: float
    model: Tensor

    def tensors(self) -> list[Tensor]:
        return [self.model]


class Sleeper:
    """Carries out naps."""

    def __init__(self) -> None:
        self.data: dict[str, Tensor] = {}

    def do(self, nap: Any) -> Tensor:
        time.sleep(nap.seconds)
        return torch.zeros(len(nap.model))


def busy_share(workers: int, seconds: float, naps: int) -> float:
    """Of the workers' time, how much they sleep, if the driver does nothing but take results and order more."""
    executor = make_executor("ray", Sleeper(), workers)
    models = [torch.zeros(MODEL) for _ in range(16)]

    def ordered() -> Iterator[int]:
        for key in range(10**9):
            executor.submit(key, float(key), Nap(seconds, models[key % 16].clone()))
            yield key

    keys = ordered()
    ahead = 4 * workers * max(1, round(0.05 / seconds))
    for _ in range(ahead):
        next(keys)
    for key in range(2 * ahead):  # until all processes have begun, and durations are known
        executor.fetch(key)
        next(keys)
    began = time.perf_counter()
    for key in range(2 * ahead, 2 * ahead + naps):
        executor.fetch(key)
        next(keys)
    share = naps * seconds / (time.perf_counter() - began) / workers
    executor.close()
    return share


def show_sleeping(most: int) -> None:
    print(f"sleeping workers, a model of {MODEL:,} numbers each way: share of their time asleep, by their number")
    counts = [count for count in (2, 4, 8, 16, 32, 64, 128) if count <= most]
    for milliseconds in MILLISECONDS:
        found = {}
        for count in counts:
            naps = max(4 * count, round(5.0 * count * 1000 / milliseconds))
            found[count] = busy_share(count, milliseconds / 1000, min(naps, 8000))
        kept = max((count for count, share in found.items() if share >= BUSY), default=0)
        told = ", ".join(f"{count}: {share:.0%}" for count, share in found.items())
        print(f"  {milliseconds:3} ms: {told}; at least {BUSY:.0%} of {kept} workers", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--most", type=int, default=32, help="sleeping workers at most")
    options = parser.parse_args()
    with one_thread(), connected("ray", max(options.workers, options.most)):
        show_training(options.workers, options.repeats)
        show_sleeping(options.most)


if __name__ == "__main__":
    main()
