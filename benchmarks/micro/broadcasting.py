"""What EchoPFL's server costs per update, by rule of assignment and policy of broadcasts, beside one pass over the
models that it has to look at; and how often the predictor is right, beside the mean of the last ten changes.

    python benchmarks/micro/broadcasting.py
    python benchmarks/micro/broadcasting.py --data-dir DATA      # the predictor too, on MNIST
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polytempo.core.events import Update
from polytempo.core.model.rows import l1
from polytempo.sim.experiment import make_experiment
from polytempo.sim.run import run_experiment
from polytempo.strategies import Setting, make_strategy
from polytempo.strategies.parts.echo import Echo
from polytempo_client.model.schema import Schema

CLIENTS, PARAMETERS, UPDATES = 100, 600_000, 200
RULES: dict[str, dict[str, Any]] = {
    "default (KL, accumulated)": {},
    "assignment by L1": {"assignment": "l1"},
    "no clusters": {"first_clusters": 1, "refine_every": 0},
    "assignment by cosine": {"assignment": "cosine"},
    "broadcast by the RNN": {"broadcast": "rnn"},
    "broadcast always": {"broadcast": "always"},
}


def milliseconds_per_update(parameters: dict[str, Any]) -> tuple[float, float]:
    """Median of one update, and how many clusters there were on average."""
    rng = torch.Generator().manual_seed(0)
    initial = torch.randn(PARAMETERS, generator=rng)
    strategy: Any = make_strategy("echopfl", parameters)
    strategy.begin(Setting(initial, Schema(("w",), ((PARAMETERS,),), PARAMETERS)))
    for client in range(CLIENTS):
        strategy.joined(client, 0.0)
    groups = torch.randn(4, PARAMETERS, generator=rng)
    models = [initial + groups[client % 4] + 0.1 * torch.randn(PARAMETERS, generator=rng) for client in range(CLIENTS)]
    shares = np.full((4, 10), 0.05) + 0.5 * np.eye(4, 10)
    seconds, clusters = [], []
    for turn in range(UPDATES + CLIENTS):
        client = turn % CLIENTS
        order = next(iter(strategy.ready(client, 0.0)))
        soft = shares[client % 4].tolist()
        answers = {"fit": {"feedback": 0.01 * (client % 7), "soft_labels": soft}, "soft-labels": soft}
        update = Update(client, order.version, order.weights, models[client], 1, 1, None, answers)
        began = time.perf_counter()
        list(strategy.updated(update, 0.0))
        seconds.append(time.perf_counter() - began)
        clusters.append(len(strategy.clusters.branches))
    return 1e3 * float(np.median(seconds[CLIENTS:])), float(np.mean(clusters[CLIENTS:]))


def milliseconds(work: Callable[[], object], times: int = 50) -> float:
    spent = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        spent.append(time.perf_counter() - began)
    return 1e3 * float(np.median(spent))


def hits(data_dir: Path, seed: int) -> tuple[float, float, float, int]:
    """Of all judged states of a run by the RNN: how often it, and the mean of the last ten changes, was right, the
    share of the commoner label, and the number of states."""
    judged: list[tuple[bool, bool, bool]] = []
    record, decide = Echo.record, Echo.decide
    open_states: dict[int, tuple[bool, bool, float]] = {}

    def note_record(echo: Echo, model: Tensor, change: float) -> None:
        if id(echo) in open_states:
            predicted, by_mean, accumulated = open_states.pop(id(echo))
            label = accumulated >= change
            judged.append((predicted == label, by_mean == label, label))
        record(echo, model, change)

    def note_decide(echo: Echo, policy: Any, rho: float) -> bool:
        predicted = decide(echo, policy, rho)
        open_states[id(echo)] = (predicted, bool(echo.accumulated >= np.mean(echo.changes)), echo.accumulated)
        return predicted

    Echo.record, Echo.decide = note_record, note_decide  # type: ignore[method-assign]
    try:
        run_experiment(
            make_experiment(
                strategy="echopfl",
                parameters={"broadcast": "rnn"},
                data="mnist",
                data_dir=data_dir,
                clients=60,
                partition="groups",
                devices="slow:0.3x5",
                test_share=0.9,
                steps=12,
                updates=1_500,
                eval_every=1_500,
                seed=seed,
            )
        )
    finally:
        Echo.record, Echo.decide = record, decide  # type: ignore[method-assign]
    predicted, by_mean, label = np.array(judged).mean(axis=0)
    return float(predicted), float(by_mean), float(max(label, 1 - label)), len(judged)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, help="where MNIST lies")
    given = parser.parse_args()
    torch.set_num_threads(1)
    one, other = torch.randn(PARAMETERS), torch.randn(PARAMETERS)
    l1(one, other)  # compiles
    per_pass, by_torch = milliseconds(lambda: l1(one, other)), milliseconds(lambda: torch.dist(one, other, 1))
    print(f"{CLIENTS} clients, {PARAMETERS:,} parameters, one thread")
    print(f"L1 distance of two models: {per_pass:.2f} ms, by torch {by_torch:.2f} ms")
    for name, parameters in RULES.items():
        spent, clusters = milliseconds_per_update(parameters)
        print(f"{name:28s} {spent:7.2f} ms per update, {clusters:.1f} clusters, {spent / per_pass:.1f} distances")
    if given.data_dir is not None:
        for seed in (1, 2, 3):
            predicted, by_mean, commoner, states = hits(given.data_dir, seed)
            print(
                f"seed {seed}: the predictor is right in {predicted:.1%} of {states:,} states, the mean of ten in "
                f"{by_mean:.1%}, the commoner label in {commoner:.1%}"
            )


if __name__ == "__main__":
    main()
