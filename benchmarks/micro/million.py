"""A million clients in one run: how long it takes until the first update, and how much memory it needs in all.

    python benchmarks/micro/million.py [--clients 1000000] [--updates 50000]

FedAsync on a model of six numbers, five rows of two features per client, a thousand clients in training at once, a
thousand evaluated, in a directory. Bars: the first update within two minutes, 4 GB, the report opens within 5 s.
Seconds are those of the wall and, beside them, of the CPU."""

import argparse
import resource
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from polytempo import Callback, Run, simulate
from polytempo.report.page import write_report
from polytempo.world.dataset import Dataset

ROWS = 5
"""Per client."""


def data(clients: int) -> Dataset:
    """Two features and two classes."""
    rng = np.random.default_rng(0)
    rows = ROWS * clients
    return Dataset("tiny", rng.random((rows, 2), np.float32), rng.integers(0, 2, rows), 2, rows)


def tiny() -> nn.Module:
    """Six numbers."""
    return nn.Sequential(nn.Linear(2, 2))


class Watch(Callback):
    """Prints how far the run is, ten times."""

    def __init__(self, updates: int) -> None:
        self._every, self._done = max(1, updates // 10), 0
        self._clocks = time.perf_counter(), time.process_time()

    def on_update(self, row: Mapping[str, Any]) -> None:
        self._done += 1
        if self._done == 1 or self._done % self._every == 0:
            self.show(f"{self._done:,} updates")

    def show(self, what: str) -> None:
        """What has happened, how long it took since the last time, and the memory that is used and was used at most."""
        before, self._clocks = self._clocks, (time.perf_counter(), time.process_time())
        wall, cpu = np.subtract(self._clocks, before)
        now = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
        print(f"  {what:>16}: {wall:6.1f} s ({cpu:6.1f} s of CPU), {now:5,.0f} MiB, at most {most:5,.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--updates", type=int, default=50_000)
    options = parser.parse_args()
    print(f"FedAsync, {options.clients:,} clients")
    watch = Watch(options.updates)
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "run"
        simulate(
            "fedasync",
            data=data(options.clients),
            clients=options.clients,
            model=tiny,
            steps=1,
            batch_size=2,
            engine="eager",
            participation="k:1000",
            eval_clients=1000,
            eval_every=options.updates // 5,
            updates=options.updates,
            workers=1,
            callbacks=[watch],
            out=out,
        )
        watch.show("end, with report")
        written = sum(path.stat().st_size for path in out.iterdir()) / 2**20
        print(f"  the directory has {written:,.0f} MiB: {largest(out)}")
        run = Run.load(out)
        watch.show("read back")
        write_report([run], out / "again.html", "again")
        watch.show("report")


def largest(directory: Path) -> str:
    """Its three largest files."""
    sizes = sorted(((path.stat().st_size, path.name) for path in directory.iterdir()), reverse=True)[:3]
    return ", ".join(f"{name} {size / 2**20:,.1f}" for size, name in sizes)


if __name__ == "__main__":
    main()
