"""A process that begins a cluster of its own, runs there, and is killed in the middle of its runs.

    python -m support.killed_driver DIRECTORY STRATEGY...

It prints the digest of a whole run first."""

import os
import signal
import sys
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from polytempo.sim.executors.cluster import connected
from polytempo.sim.experiment import make_experiment
from polytempo.sim.records.history import History
from polytempo.sim.run import run_experiment

WORLD: dict[str, Any] = {
    "clients": 6,
    "updates": 36,
    "partition": "groups:2",
    "devices": "slow:0.3x5",
    "batch_size": 16,
    "steps": 6,
    "lr": 0.1,
    "seed": 5,
}
HALF = 18


class At:
    """Watches a run, and does something after so many updates."""

    def __init__(self, updates: int, act: Any) -> None:
        self._updates, self._act = updates, act
        self.acted = False

    def begin(self, config: Mapping[str, Any], history: History, directory: Path | None) -> None:
        """Nothing is to be done."""

    def look(self, history: History) -> None:
        if len(history.updates) >= self._updates and not self.acted:
            self.acted = True
            self._act()


def main(directory: Path, strategies: list[str]) -> None:
    experiments = {name: make_experiment(strategy=name, executor="ray", workers=1, **WORLD) for name in strategies}
    with connected("ray", len(strategies)):
        print(run_experiment(experiments[strategies[0]]).result["digest"], flush=True)
        end = partial(os.kill, os.getpid(), signal.SIGKILL)
        all_are_there = threading.Barrier(len(strategies), action=end)
        runs = []

        def run(name: str) -> None:
            watcher = At(HALF, all_are_there.wait)
            try:
                run_experiment(experiments[name], directory / name, checkpoint_seconds=0, watcher=watcher)
            except BaseException:
                all_are_there.abort()  # or the others would wait for this one
                raise

        for name in experiments:
            runs.append(threading.Thread(target=run, args=(name,)))
            runs[-1].start()
        for thread in runs:
            thread.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
