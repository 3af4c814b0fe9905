"""What CASA's clustering costs: 784-100-10 mlp (79,510 parameters), 56 local steps of batch 10 per update.

    python benchmarks/micro/clustering.py [--data-dir DIR]

Bars: at 100 clients the clustering part of an event (all of ``updated`` but the mixing of the model) takes at most 2 ms
on average; at 2,000 clients less than half of a run's wall time is spent outside training, that is, with no thread in
training. The share of CPU time that was not training is printed beside, and so is the CPU time of events: these suffer
least from other processes on the machine. Evaluations are outside the window that is measured. At 2,000 clients the
default budget and coverage are far from a first split, so two more rows have a low coverage, with which the
eigenproblem of all clients is solved. Without MNIST in the data directory, random images of its size are used."""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from overhead import images

from polytempo.core.branch import Branch
from polytempo.core.errors import UserError
from polytempo.core.events import Update
from polytempo.core.orders import Orders, Work
from polytempo.learn.learner import make_learner
from polytempo.learn.models import Inputs
from polytempo.sim.executors.threads import Threads
from polytempo.sim.records.evaluation import Stop
from polytempo.sim.records.history import History
from polytempo.sim.simulator import Simulator
from polytempo.sim.world import World
from polytempo.strategies import Setting
from polytempo.strategies.methods.casa import Casa
from polytempo.strategies.parts.decay import Decay
from polytempo.world.data import load_dataset
from polytempo.world.dataset import Dataset
from polytempo.world.devices import make_devices
from polytempo.world.partitions import make_federation

WORKERS = 2
WORK = Work(steps=56, epochs=None, batch_size=10, lr=0.01)
UNLIMITED = 1_000_000


class TimedCasa(Casa):
    """CASA that notes how long each event took, and how much of that the mixing of the model: wall and CPU time."""

    events: ClassVar[list[np.ndarray]]
    mixing: ClassVar[list[np.ndarray]]

    def updated(self, update: Update, now: float) -> Orders:
        began = clocks()
        orders = super().updated(update, now)
        self.events.append(clocks() - began)
        return orders

    def aggregate(self, branch: Branch, update: Update, decay: Decay, alpha: float) -> None:
        began = clocks()
        super().aggregate(branch, update, decay, alpha)
        self.mixing.append(clocks() - began)


def clocks() -> np.ndarray:
    """Wall time, and CPU time of this thread."""
    return np.array([time.perf_counter(), time.thread_time()])


@dataclass(frozen=True)
class Cost:
    """Of a run, between its first and its last evaluation."""

    clustering: np.ndarray
    """Wall and CPU seconds of each event, without the mixing."""
    mixing: np.ndarray
    untrained: float
    """Share of wall time in which no thread trained."""
    other: float
    """Share of CPU time that was not training."""
    clusters: int


def measure(dataset: Dataset, clients: int, updates: int, **parameters: float) -> Cost:
    federation = make_federation(dataset, "groups", clients, seed=0)
    inputs = Inputs(dataset.x.shape[1:], dataset.classes, dataset.vocabulary)
    learner, initial = make_learner("mlp", inputs, 0, "auto", None, None, dataset.samples_to_try())
    strategy = TimedCasa(**parameters)  # type: ignore[arg-type]
    TimedCasa.events, TimedCasa.mixing = [], []
    strategy.begin(Setting(initial, learner.schema, WORK, planned_updates=updates))
    world = World(federation, make_devices("slow:0.3x5", clients, seed=0), learner)
    stop = Stop(updates=updates)
    simulator = Simulator(strategy, world, stop, 10**9, Threads(world.worker(), WORKERS), History())
    readings: list[tuple[float, float, float, float]] = []

    def after_event() -> None:
        if simulator.updates in (1, updates - 1) and len(readings) < 2:
            spent = simulator.executor.spent()
            readings.append((time.perf_counter(), spent.working_wall, time.process_time(), spent.training_cpu))

    simulator.run(after_event)
    wall, working, cpu, training = np.subtract(readings[1], readings[0])
    mixing = np.array(strategy.mixing)
    return Cost(
        np.array(strategy.events) - mixing,
        mixing,
        1 - working / wall,
        1 - training / cpu,
        len(strategy.clusters.branches),
    )


def describe(what: str, cost: Cost) -> None:
    wall, cpu = 1000 * cost.clustering.T
    print(
        f"  {what:30} clustering {wall.mean():5.2f} ms (CPU {cpu.mean():5.2f}; 99th percentile "
        f"{np.percentile(wall, 99):6.2f}, slowest {wall.max():7.1f}), mixing {1000 * cost.mixing[:, 0].mean():.2f} ms, "
        f"{cost.clusters} clusters; outside training {cost.untrained:.1%} of wall, {cost.other:.1%} of CPU"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    try:
        dataset = load_dataset("mnist", parser.parse_args().data_dir)
    except UserError:
        dataset = images()
    torch.set_num_threads(1)
    measure(dataset, 20, 200)  # warm up: compilation, imports
    print(f"{dataset.name}: 100 clients, 2,000 updates; bar: clustering 2 ms on average")
    describe("default budget", measure(dataset, 100, 2_000))
    describe("unlimited budget", measure(dataset, 100, 2_000, budget=UNLIMITED))
    print(f"{dataset.name}: 2,000 clients, 6,000 updates; bar: less than 50 % outside training")
    describe("default budget", measure(dataset, 2_000, 6_000))
    describe("coverage 0.0005", measure(dataset, 2_000, 6_000, coverage=0.0005))
    describe("coverage 0.0005, budget 40,000", measure(dataset, 2_000, 6_000, coverage=0.0005, budget=40_000))


if __name__ == "__main__":
    main()
