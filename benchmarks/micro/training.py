"""Client-steps per second of local training: the usual loop (nn.Module, DataLoader, torch.optim), the eager and the
fused engine, on one and on two workers; ratios are medians of repeats that take turns, all in one run.

    python benchmarks/micro/training.py [--data-dir DIR] [--repeats 7]

DIR holds mnist/ with the idx files; without it mlp and cnn train on random images (the speed is the same).
"""

import argparse
import gzip
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from polytempo.core.model.vectors import flatten, schema_of
from polytempo.core.orders import Work
from polytempo.learn.engines import make_engine
from polytempo.learn.job import Engine, Job, make_batches
from polytempo.learn.models import Inputs, build_model
from polytempo_client.streams import stream

CLIENTS = 8
SAMPLES = 640
BATCH = 10
LR = 0.05


@dataclass(frozen=True)
class Case:
    model: str
    shape: tuple[int, ...]
    steps: int
    bar: float
    """Fused against the usual loop, one worker against one torch thread."""
    bar_two: float
    """Two workers against two torch threads."""


CASES = (
    Case("mlp", (784,), 128, 9.0, 14.0),
    Case("cnn", (1, 28, 28), 6, 1.4, 1.8),
    Case("lenet", (3, 32, 32), 16, 2.0, 3.0),
)


def main() -> None:
    arguments = argparse.ArgumentParser(description="Speed of local training.")
    arguments.add_argument("--data-dir", type=Path)
    arguments.add_argument("--repeats", type=int, default=7)
    options = arguments.parse_args()
    titles = ("usual/s", "eager/s", "fused/s", "ratio", "bar", "of GEMM limit")
    print(f"{'model':6} {'workers':7}", *(f"{title:>8}" for title in titles))
    for case in CASES:
        measure(case, options.data_dir, options.repeats)


def measure(case: Case, data_dir: Path | None, repeats: int) -> None:
    module = build_model(case.model, Inputs(case.shape, 10), seed=1)
    start = flatten(schema_of(module), dict(module.named_parameters()))
    x, y = samples(case, data_dir)
    jobs = [job_of(client, start, x, y, case.steps) for client in range(CLIENTS)]
    loaders = [loader_of(client, x, y) for client in range(CLIENTS)]
    eager, fused = make_engine("eager", module), make_engine("fused", module)
    with ThreadPoolExecutor(2) as pool:
        ways: dict[str, Callable[[], None]] = {
            "usual 1": lambda: usual_loop(module, start, loaders, case.steps, threads=1),
            "usual 2": lambda: usual_loop(module, start, loaders, case.steps, threads=2),
            "eager 1": lambda: train_all(eager, jobs),
            "eager 2": lambda: train_all(eager, jobs, pool),
            "fused 1": lambda: train_all(fused, jobs),
            "fused 2": lambda: train_all(fused, jobs, pool),
            "gemm": large_product,
        }
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for repeat in range(repeats + 1):
            for way, run in ways.items():
                begin = time.perf_counter()
                run()
                if repeat:  # the first round compiles and warms up
                    seconds[way].append(time.perf_counter() - begin)
    limit = 2 * PRODUCT**3 / statistics.median(seconds["gemm"]) / step_flops(module, case.shape)
    for workers, bar in ((1, case.bar), (2, case.bar_two)):
        rates = {
            way: CLIENTS * case.steps / statistics.median(seconds[f"{way} {workers}"])
            for way in ("usual", "eager", "fused")
        }
        pairs = zip(seconds[f"usual {workers}"], seconds[f"fused {workers}"], strict=True)
        ratio = statistics.median(usual / fused for usual, fused in pairs)
        share = rates["fused"] / (limit * workers)
        figures = (*(f"{rate:.0f}" for rate in rates.values()), f"{ratio:.2f}x", f"{bar:.1f}x", f"{share:.0%}")
        print(f"{case.model:6} {workers:7}", *(f"{figure:>8}" for figure in figures), flush=True)


def samples(case: Case, data_dir: Path | None) -> tuple[Tensor, Tensor]:
    count = CLIENTS * SAMPLES
    if data_dir is not None and case.shape[-1] in (28, 784):
        pixels = gzip.decompress((data_dir / "mnist/train-images-idx3-ubyte.gz").read_bytes())[16:]
        labels = gzip.decompress((data_dir / "mnist/train-labels-idx1-ubyte.gz").read_bytes())[8:]
        images = np.frombuffer(pixels, np.uint8).reshape(-1, *case.shape)[:count].astype(np.float32)
        y = np.frombuffer(labels, np.uint8)[:count].astype(np.int64)
        return torch.from_numpy((images / 255 - 0.1307) / 0.3081), torch.from_numpy(y)
    rng = stream(0, "benchmark samples")
    x = rng.standard_normal((count, *case.shape), dtype=np.float32)
    return torch.from_numpy(x), torch.from_numpy(rng.integers(0, 10, count))


def job_of(client: int, start: Tensor, x: Tensor, y: Tensor, steps: int) -> Job:
    rows = np.arange(client * SAMPLES, (client + 1) * SAMPLES)
    batches = make_batches(rows, BATCH, steps, stream(0, "batches", client))
    return Job(start, x, y, batches, Work(batch_size=BATCH), LR)


def loader_of(client: int, x: Tensor, y: Tensor) -> DataLoader:
    own = slice(client * SAMPLES, (client + 1) * SAMPLES)
    return DataLoader(TensorDataset(x[own], y[own]), batch_size=BATCH, shuffle=True)


def usual_loop(module: nn.Module, start: Tensor, loaders: list[DataLoader], steps: int, threads: int) -> None:
    """One client after another, as most frameworks do it."""
    torch.set_num_threads(threads)
    criterion = nn.CrossEntropyLoss()
    module.train()
    for loader in loaders:
        nn.utils.vector_to_parameters(start, module.parameters())
        optimizer = torch.optim.SGD(module.parameters(), lr=LR)
        done = 0
        while done < steps:
            for x, y in loader:
                optimizer.zero_grad()
                criterion(module(x), y).backward()
                optimizer.step()
                done += 1
                if done == steps:
                    break
        nn.utils.parameters_to_vector(module.parameters())


def train_all(engine: Engine, jobs: list[Job], pool: ThreadPoolExecutor | None = None) -> None:
    torch.set_num_threads(1)
    list(pool.map(engine.train, jobs) if pool else map(engine.train, jobs))


PRODUCT = 768


def large_product() -> None:
    """What one core does at best: a square product."""
    torch.set_num_threads(1)
    a = torch.ones(PRODUCT, PRODUCT)
    a @ a


def step_flops(module: nn.Module, shape: tuple[int, ...]) -> int:
    """Multiplications and additions of one step: forward, weights' gradient, and (but for the first layer) input's."""
    layers: list[tuple[nn.Module, int]] = []
    hooks = [
        layer.register_forward_hook(lambda layer, _, out: layers.append((layer, out[0].numel())))
        for layer in module.modules()
        if isinstance(layer, nn.Linear | nn.Conv2d)
    ]
    module(torch.zeros(1, *shape))
    for hook in hooks:
        hook.remove()
    products = [outputs * layer.weight[0].numel() for layer, outputs in layers]  # type: ignore[index, operator]
    return BATCH * 2 * (3 * sum(products) - products[0])


if __name__ == "__main__":
    main()
