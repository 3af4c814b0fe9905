"""Runs in the format of the simulator that nobody simulated."""

import heapq
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from polytempo.report.run import Row, Run
from polytempo.sim.records.used import UsedRows
from polytempo_client.streams import stream
from support.runs import made_run

UNIQUE = itertools.count(10**6)
# How good each strategy ends and how fast it gets there, for runs that look like real ones.
SHAPES = {"standalone": (0.80, 300), "fedavg": (0.84, 500), "fedasync": (0.88, 250), "fedbuff": (0.91, 350)}


def synthetic_run(
    strategy: str = "fedasync",
    seed: int = 0,
    clients: int = 20,
    updates: int = 400,
    target: float | None = 0.85,
    **config: Any,
) -> Run:
    """A run in the simulator's format: a third of the devices is five times slower, accuracy saturates."""
    draw = stream(seed, "synthetic " + strategy)
    best, pace = SHAPES[strategy]
    seconds = stream(seed, "synthetic devices").normal(1.0, 0.1, clients).clip(0.5)
    seconds[: clients // 3] *= 5
    ease = stream(seed, "synthetic clients").normal(0, 0.05, clients)
    heap = [(10 * seconds[client], client, 0.0, 0) for client in range(clients)]
    heapq.heapify(heap)
    log: list[Row] = []
    evaluations: list[Row] = []
    for version in range(updates):
        now, client, began, started_from = heapq.heappop(heap)
        stale = 0 if strategy in ("standalone", "fedavg") else version - started_from
        row = {"time": now, "client": client, "began": began, "steps": 10, "staleness": stale, "version": started_from}
        log.append(row | {"samples": 80})
        heapq.heappush(heap, (now + 10 * seconds[client] * draw.uniform(0.95, 1.05), client, now, version + 1))
        if version % max(1, updates // 25) == 0 or version == updates - 1:
            level = best * (1 - math.exp(-3 * version / pace / (clients / 20)))
            per_client = (level + ease + draw.normal(0, 0.04, clients)).clip(0, 1).round(2)
            model_bytes = 0 if strategy == "standalone" else 318_040
            evaluations.append(evaluation(now, version, per_client, model_bytes))
    settings = settings_of(strategy, seed, clients, updates, target)
    marks = [{"time": row["time"], "kind": "refresh", "client": row["client"]} for row in log[10::60]]
    figures = figures_of(settings, log, evaluations)
    used = rows_right(evaluations[-1]["per_client_used"])
    return made_run(settings | config, figures, evaluations, log, marks if strategy == "fedbuff" else [], used=used)


def evaluation(now: float, version: int, per_client: np.ndarray, model_bytes: int) -> Row:
    """The row of one evaluation; clients are sorted by speed, the slowest first."""
    fifth = max(1, len(per_client) // 5)
    return {
        "time": now,
        "updates": version + 1,
        "accuracy": float(per_client.mean()),
        "accuracy_trained": float(per_client.mean()) + 0.01,
        "accuracy_used": float(per_client.mean()),
        "accuracy_std": float(per_client.std()),
        "accuracy_slowest_fifth": float(per_client[:fifth].mean()) - 0.05,
        "accuracy_fastest_fifth": float(per_client[-fifth:].mean()) + 0.02,
        "idle_share": 0.25,
        "clusters": 1,
        "ari": None,
        "bytes_up": model_bytes * (version + 1),
        "bytes_down": model_bytes * (version + len(per_client)),
        "per_client": per_client.tolist(),
        "per_client_trained": [None, *per_client.tolist()[1:]],
        "per_client_used": per_client.tolist(),
        "per_client_idle": [0.25] * len(per_client),
    }


def settings_of(strategy: str, seed: int, clients: int, updates: int, target: float | None) -> dict[str, Any]:
    return {
        "strategy": strategy,
        "parameters": {"mixing": 0.6, "staleness": "polynomial:0.5"} if strategy == "fedasync" else {},
        "data": "digits",
        "clients": clients,
        "partition": "groups",
        "devices": "slow:0.3x5",
        "model": "mlp",
        "seed": seed,
        "target": target,
        "updates": updates,
        "time": None,
        "lr": 0.05,
        "versions": {"polytempo": "0.1.0", "torch": "2.13.0"},
    }


def figures_of(settings: Row, log: list[Row], evaluations: list[Row]) -> dict[str, Any]:
    last, target = evaluations[-1], settings["target"]
    reached = [row["time"] for row in evaluations if target is not None and row["accuracy"] >= target]
    return {
        **{key: last[key] for key in last if key != "time" and not key.startswith("per_client")},
        "strategy": settings["strategy"],
        "seed": settings["seed"],
        "virtual_time": last["time"],
        "time_to_target": reached[0] if reached else None,
        "client_steps": 10 * len(log),
        "wall_seconds": 3.2,
        "train_seconds": 2.9,
        "overhead_seconds": 0.1,
        "mean_staleness": sum(row["staleness"] for row in log) / len(log),
        "digest": f"{settings['seed']:064x}",
    }


def simple_run(strategy: str, accuracies: list[float | None], seed: int = 0, **config: Any) -> Run:
    """A run of which only the final accuracies of its clients are known, on a hundred test rows each."""
    result = dict.fromkeys(synthetic_run(updates=1).result) | {"strategy": strategy, "seed": seed}
    result["accuracy"] = sum(filter(None, accuracies)) / len(accuracies)
    world = {"strategy": strategy, "seed": seed, "data": "digits", "clients": len(accuracies), "partition": "iid"}
    evaluations = [{"time": 1.0, "updates": 1, "per_client": accuracies}]
    return made_run(world | config, result, evaluations, used=rows_right(accuracies))


def rows_right(accuracies: Sequence[float | None]) -> UsedRows:
    """A hundred test rows per client, the same in all runs. A better model is right on whatever a worse one is, so five
    points are the least difference that counts. A client without an accuracy has test rows of its own in each run."""
    checksums = [client if a is not None else next(UNIQUE) for client, a in enumerate(accuracies)]
    return UsedRows.of([np.arange(100) < round(100 * (a or 0)) for a in accuracies], checksums)
