"""What PACE's server costs: time of an update, memory, and its closed form beside a QP solver.

    python benchmarks/micro/collaboration.py [--repeats 30]

Bars: one update (``Pace.updated``, all of it) takes at most 1.5 times as long as the fastest pass over the clients x
parameters matrix of buffers that could do its work, at 100 clients with 580,000 parameters and at 1,000 with 80,000;
memory is the matrix, and the graph's clients x clients weights, and no more. Where rows of the graph are dense, every
update moves every buffer, and the pass is torch's ``matrix.mul_(x)``, which reads and writes everything. Where they are
sparse (clients in ten groups of like models, everybody has handed in) few buffers move, and the pass is torch's ``x @
matrix``, which reads everything once and is faster than ``matrix.sum()``. All use one thread per core and take turns.
Printed are medians of wall time and, as other programs on the machine disturb these less, the fastest and the median
CPU time of all threads. Rows of the graph by cvxpy are timed where it is installed (``pip install cvxpy``)."""

import argparse
import ctypes
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polytempo.core.events import Update
from polytempo.strategies import Setting
from polytempo.strategies.methods.pace import Pace
from polytempo.strategies.parts.graph import project_simplex
from polytempo_client.model.schema import Schema
from polytempo_client.streams import stream

cvxpy: Any = None
with suppress(ImportError):
    import cvxpy

SIZES = ((100, 580_000), (1_000, 80_000))
BAR = 1.5
GROUPS = 10
IN_FLIGHT = 10
UPDATES = 200
CORES = len(os.sched_getaffinity(0))
THREADS = ThreadPoolExecutor(CORES)


class Clients:
    """Clients in groups of like models hand in one after the other; ten are in training at a time."""

    def __init__(self, clients: int, size: int) -> None:
        self.clients = clients
        self.initial = self._draw(size, "initial")
        self.groups = [self._draw(size, "group", group) for group in range(GROUPS)]

    def _draw(self, size: int, *purpose: Any) -> Tensor:
        return torch.from_numpy(stream(0, *purpose).standard_normal(size, dtype=np.float32))

    def join(self, **parameters: Any) -> Pace:
        size = len(self.initial)
        pace = Pace(budget=4 * size, **parameters)  # type: ignore[call-arg]
        pace.begin(Setting(self.initial, Schema(("w",), ((size,),), size)))
        for client in range(self.clients):
            pace.joined(client, 0.0)
        return pace

    def updates(self, pace: Pace) -> Iterator[Update]:
        """For ever. What a client learns is half its group's and half its own."""
        index = 0
        while True:
            client, index = index % self.clients, index + 1
            model = (
                self._draw(len(self.initial), "client", client).add_(self.groups[client % GROUPS]).add_(self.initial)
            )
            yield Update(client, max(0, pace.t - IN_FLIGHT + 1), self.initial, model, 100 + client, steps=1)
            pace.order_for((client + IN_FLIGHT) % self.clients, 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=30)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)  # as the drivers do; torch's own threads spin after their work and take the cores
    for clients, size in SIZES:
        print(f"{clients:,} clients, {size:,} parameters: {4 * clients * size / 1e6:,.0f} MB of buffers", flush=True)
        who = Clients(clients, size)
        measure_dense(who, repeats)
        measure_sparse(who, repeats)
    for clients, _ in SIZES:
        measure_rows(clients)


def measure_dense(who: Clients, repeats: int) -> None:
    """Without regard to likeness every row of the graph is p."""
    pace = who.join(gamma=0.0)
    parts = pace.models.matrix.chunk(CORES)
    compare("dense", pace, who.updates(pace), lambda: on_all_cores(lambda part: part.mul_(0.999), parts), repeats)


def measure_sparse(who: Clients, repeats: int) -> None:
    """As it is after a while; and the memory of that."""
    before = resident_bytes()
    pace = who.join()
    updates = who.updates(pace)
    for _ in range(max(UPDATES, who.clients)):
        pace.updated(next(updates), 0.0)
    grown = resident_bytes() - before
    matrix = pace.models.matrix
    floats, weights = 4 * matrix.numel(), pace.graph.weights.nbytes
    print(
        f"  memory: {grown / 1e6:,.1f} MB more after {pace.t:,} updates; the buffers have {floats / 1e6:,.1f} MB, the "
        f"weights {weights / 1e6:,.1f} MB: {grown / (floats + weights):.2f} times both (bar: no more)"
    )
    parts = matrix.chunk(CORES)
    x = torch.ones(len(parts[0]))
    compare("sparse", pace, updates, lambda: on_all_cores(lambda part: x[: len(part)] @ part, parts), repeats)


def compare(rows: str, pace: Pace, updates: Iterator[Update], limit: Callable[[], object], repeats: int) -> None:
    mine, least, moved = [], [], []
    for index in range(repeats + 2):
        update = next(updates)
        taken = np.count_nonzero(np.delete(pace.graph.column(update.client), update.client))
        times = spent(lambda update=update: pace.updated(update, 0.0)), spent(limit)  # type: ignore[misc]
        if index >= 2:  # the first are warm-up: compilation, threads
            mine.append(times[0])
            least.append(times[1])
            moved.append(taken)
    wall, cpu = np.median(mine, axis=0) / np.median(least, axis=0)
    fastest = np.min(mine, axis=0)[0] / np.min(least, axis=0)[0]
    print(
        f"  {rows + ' rows:':12} an update {shown(mine)}, moves {np.mean(moved):,.0f} buffers; the pass over memory "
        f"{shown(least)}: {wall:.2f} times (fastest {fastest:.2f}, CPU {cpu:.2f}; bar {BAR})",
        flush=True,
    )


def on_all_cores(work: Callable[[Tensor], Tensor], parts: Sequence[Tensor]) -> None:
    for _ in THREADS.map(work, parts):
        pass


def spent(work: Callable[[], object]) -> np.ndarray:
    """Wall time, and CPU time of all threads."""
    began = np.array([time.perf_counter(), time.process_time()])
    work()
    return np.array([time.perf_counter(), time.process_time()]) - began


def shown(times: Sequence[np.ndarray]) -> str:
    (median, cpu), (fastest, _) = 1e3 * np.median(times, axis=0), 1e3 * np.min(times, axis=0)
    return f"{median:.1f} ms (fastest {fastest:.1f}, CPU {cpu:.1f})"


def measure_rows(clients: int) -> None:
    """One row of the graph from its unlikenesses."""
    rng = stream(0, "rows", clients)
    rows = [1 / clients + 0.75 * rng.uniform(-0.2, 1, clients) for _ in range(20)]
    ours = np.median([spent(lambda v=v: project_simplex(v))[0] for v in rows])  # type: ignore[misc]
    text = f"a row of {clients:,} clients: closed form {1e6 * ours:,.0f} us, all rows {clients * ours:.3f} s"
    if cvxpy is None:
        print(f"{text}; cvxpy is not installed and not timed")
        return
    solved: list[np.ndarray] = []
    theirs = np.median([spent(lambda v=v: solved.append(by_cvxpy(v)))[0] for v in rows[:7]])  # type: ignore[misc]
    apart = max(np.abs(project_simplex(v) - found).max() for v, found in zip(rows[:7], solved, strict=True))
    print(
        f"{text}; cvxpy {1e3 * theirs:,.1f} ms, all rows {clients * theirs:,.1f} s: {theirs / ours:,.0f} times as "
        f"long, at most {apart:.0e} apart"
    )


def by_cvxpy(v: np.ndarray) -> np.ndarray:
    """As a server would that calls a solver for every row."""
    w = cvxpy.Variable(len(v))
    cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(w - v)), [w >= 0, cvxpy.sum(w) == 1]).solve()
    return np.asarray(w.value)


def resident_bytes() -> int:
    """Without what the allocator keeps for later."""
    ctypes.CDLL(None).malloc_trim(0)
    status = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


if __name__ == "__main__":
    main()
