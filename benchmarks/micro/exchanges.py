"""What an exchange costs CDFL's server with Algorithm 2's estimate, by the number of clusters: the update and the
answer, beside one forward pass of one model over all proxy sets and one weighted sum of the cluster models. How many
cluster models an update moves depends on the mixture; the two ends are none and all of them.

    python benchmarks/micro/exchanges.py
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from polytempo.core.events import Update
from polytempo.core.orders import Work
from polytempo.learn.learner import make_learner
from polytempo.learn.models import Inputs
from polytempo.learn.proxies import ProxySets
from polytempo.strategies import Setting, make_strategy

SAMPLES, EXCHANGES, ROUNDS = 500, 40, 5


def milliseconds(work: Callable[[], Any], times: int) -> float:
    """The mean of one call, in the best of some rounds."""
    spent = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(times):
            work()
        spent.append(time.perf_counter() - began)
    return 1e3 * min(spent) / times


def costs(clusters: int) -> list[float]:
    """Milliseconds: a forward pass over all proxy sets, a sum of the cluster models, an update that moves none of them,
    one that moves all, an answer."""
    rng = np.random.default_rng(0)
    inputs = Inputs((1, 28, 28), 10, None)
    learner, initial = make_learner("mlp", inputs, seed=0)
    x = rng.normal(size=(clusters * SAMPLES, 1, 28, 28)).astype(np.float32)
    y = rng.integers(10, size=len(x))
    proxies = ProxySets(learner, x, y, np.arange(clusters + 1) * SAMPLES, Work(), seed=0)

    def begun(**parameters: float) -> Any:
        strategy: Any = make_strategy("cdfl", {"specialise": 1, "estimate": "paper", **parameters})
        strategy.begin(Setting(initial, learner.schema, objects={"proxies": proxies}))
        strategy.joined(0, 0.0)
        return strategy

    none, everyone = begun(b1_bar=1.0), begun(b1_bar=0.0)
    model = torch.from_numpy(rng.normal(scale=0.02, size=len(initial)).astype(np.float32))

    def exchange(strategy: Any) -> None:
        strategy.updated(Update(0, strategy.t, initial, model, 1, 1), 0.0)

    mixture = np.full(clusters, 1 / clusters)
    return [
        milliseconds(lambda: proxies.losses(model), EXCHANGES),
        milliseconds(lambda: everyone.mixed(mixture), EXCHANGES),
        milliseconds(lambda: exchange(none), EXCHANGES),
        milliseconds(lambda: exchange(everyone), EXCHANGES),
        milliseconds(lambda: everyone.order_for(0, 0.0), EXCHANGES),
    ]


def main() -> None:
    torch.set_num_threads(1)
    print(f"mlp 784-100-10 (79,510 parameters), {SAMPLES} proxy samples per cluster, one thread; milliseconds\n")
    print("| K | forward pass | sum of K models | update, none moved | update, all moved | answer | / forward pass |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for clusters in (1, 2, 4, 6, 12):
        forward, total, none, everyone, answer = costs(clusters)
        ends = f"{(none + answer) / forward:.2f} to {(everyone + answer) / forward:.2f}"
        print(f"| {clusters} | {forward:.2f} | {total:.2f} | {none:.2f} | {everyone:.2f} | {answer:.2f} | {ends} |")


if __name__ == "__main__":
    main()
