"""Client-steps per second of local training: the usual loop (nn.Module, DataLoader, torch.optim), the eager and the
fused engine, on one and on two workers; ratios are medians of repeats that take turns, all in one run.

    python benchmarks/micro/training.py [--data-dir DIR] [--repeats 7] [--cpu] [MODEL ...]

DIR holds mnist/ with the idx files; without it mlp and cnn train on random images (the speed is the same).
"Scored" is a forward pass without training beside that of training (its share of the operations), per sample: 1.0 is as
long. With --cpu it is processor time that counts, which other processes on the machine hardly change.
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
BATCHES = (10, 64)
VOCABULARY = 5000
LR = 0.05


@dataclass(frozen=True)
class Case:
    model: str
    shape: tuple[int, ...]
    samples: int
    """Of a client in one measurement."""
    bars: tuple[float, float] = (1.0, 1.0)
    """Fused against the usual loop at batch 10: one worker against one torch thread, two against two."""


CASES = (
    Case("mlp", (784,), 1280, (9.0, 14.0)),
    Case("cnn", (1, 28, 28), 64, (1.4, 1.8)),
    Case("lenet", (3, 32, 32), 192, (2.0, 3.0)),
    Case("cnn1d", (9, 128), 320),
    Case("textcnn", (64,), 64),
)


def main() -> None:
    arguments = argparse.ArgumentParser(description="Speed of local training.")
    arguments.add_argument("--data-dir", type=Path)
    arguments.add_argument("--repeats", type=int, default=7)
    arguments.add_argument("--cpu", action="store_true", help="processor time")
    arguments.add_argument("models", nargs="*", default=[case.model for case in CASES])
    options = arguments.parse_args()
    clock = time.process_time if options.cpu else time.perf_counter
    titles = ("usual/s", "eager/s", "fused/s", "ratio", "bar", "of GEMM", "scored")
    print(f"{'model':8} {'batch':5} {'workers':7}", *(f"{title:>8}" for title in titles))
    for case in CASES:
        for batch in BATCHES if case.model in options.models else ():
            measure(case, batch, options.data_dir, options.repeats, clock)


def measure(case: Case, batch: int, data_dir: Path | None, repeats: int, clock: Callable[[], float]) -> None:
    words = VOCABULARY if case.model == "textcnn" else None
    steps = -(-case.samples // batch)
    module = build_model(case.model, Inputs(case.shape, 10, words), seed=1)
    start = flatten(schema_of(module), dict(module.named_parameters()))
    x, y = samples(case, data_dir)
    jobs = [job_of(client, start, x, y, batch, steps) for client in range(CLIENTS)]
    loaders = [loader_of(client, x, y, batch) for client in range(CLIENTS)]
    eager, fused = make_engine("eager", module), make_engine("fused", module)
    with ThreadPoolExecutor(2) as pool:
        ways: dict[str, Callable[[], None]] = {
            "usual 1": lambda: usual_loop(module, start, loaders, steps, threads=1),
            "usual 2": lambda: usual_loop(module, start, loaders, steps, threads=2),
            "eager 1": lambda: train_all(eager, jobs),
            "eager 2": lambda: train_all(eager, jobs, pool),
            "fused 1": lambda: train_all(fused, jobs),
            "fused 2": lambda: train_all(fused, jobs, pool),
            "gemm": large_product,
            "scored": lambda: fused.outputs(start, x, np.arange(SAMPLES)),
        }
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for repeat in range(repeats + 1):
            for way, run in ways.items():
                begin = clock()
                run()
                if repeat:  # the first round compiles and warms up
                    seconds[way].append(clock() - begin)
    forward, whole = sample_flops(module, case)
    limit = PRODUCTS * 2 * PRODUCT**3 / statistics.median(seconds["gemm"]) / (whole * batch)
    per_sample = statistics.median(seconds["fused 1"]) / (CLIENTS * steps * batch) * forward / whole
    scored = statistics.median(seconds["scored"]) / SAMPLES / per_sample
    for workers, bar in enumerate(case.bars, 1):
        parallel = workers if clock is time.process_time else 1
        rates = {
            way: parallel * CLIENTS * steps / statistics.median(seconds[f"{way} {workers}"])
            for way in ("usual", "eager", "fused")
        }
        pairs = zip(seconds[f"usual {workers}"], seconds[f"fused {workers}"], strict=True)
        ratio = statistics.median(usual / fused for usual, fused in pairs)
        share = rates["fused"] / (limit * workers)
        shown = f"{bar:.1f}x" if batch == BATCHES[0] and bar > 1 else "-"
        speeds = (f"{rate:.0f}" for rate in rates.values())
        figures = (*speeds, f"{ratio:.2f}x", shown, f"{share:.0%}", f"{scored:.2f}")
        print(f"{case.model:8} {batch:5} {workers:7}", *(f"{figure:>8}" for figure in figures), flush=True)


def samples(case: Case, data_dir: Path | None) -> tuple[Tensor, Tensor]:
    count = CLIENTS * SAMPLES
    if data_dir is not None and case.shape[-1] in (28, 784):
        pixels = gzip.decompress((data_dir / "mnist/train-images-idx3-ubyte.gz").read_bytes())[16:]
        labels = gzip.decompress((data_dir / "mnist/train-labels-idx1-ubyte.gz").read_bytes())[8:]
        images = np.frombuffer(pixels, np.uint8).reshape(-1, *case.shape)[:count].astype(np.float32)
        y = np.frombuffer(labels, np.uint8)[:count].astype(np.int64)
        return torch.from_numpy((images / 255 - 0.1307) / 0.3081), torch.from_numpy(y)
    rng = stream(0, "benchmark samples")
    if case.model == "textcnn":
        x = rng.integers(0, VOCABULARY, (count, *case.shape))
    else:
        x = rng.standard_normal((count, *case.shape), dtype=np.float32)
    return torch.from_numpy(x), torch.from_numpy(rng.integers(0, 10, count))


def job_of(client: int, start: Tensor, x: Tensor, y: Tensor, batch: int, steps: int) -> Job:
    rows = np.arange(client * SAMPLES, (client + 1) * SAMPLES)
    batches = make_batches(rows, batch, steps, stream(0, "batches", client))
    return Job(start, x, y, batches, Work(batch_size=batch), LR)


def loader_of(client: int, x: Tensor, y: Tensor, batch: int) -> DataLoader:
    own = slice(client * SAMPLES, (client + 1) * SAMPLES)
    return DataLoader(TensorDataset(x[own], y[own]), batch_size=batch, shuffle=True)


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


PRODUCT, PRODUCTS = 768, 4


def large_product() -> None:
    """What one core does at best: a square product."""
    torch.set_num_threads(1)
    a = torch.ones(PRODUCT, PRODUCT)
    for _ in range(PRODUCTS):
        a @ a


def sample_flops(module: nn.Module, case: Case) -> tuple[int, int]:
    """Multiplications and additions of a sample's forward pass, and of its whole step: also the weights' gradient, and
    the input's, but for a first layer that is given the samples."""
    layers: list[tuple[nn.Module, int]] = []
    hooks = [
        layer.register_forward_hook(lambda layer, _, out: layers.append((layer, out[0].numel())))
        for layer in module.modules()
        if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d)
    ]
    words = case.model == "textcnn"
    module(torch.zeros(1, *case.shape, dtype=torch.int64 if words else torch.float32))
    for hook in hooks:
        hook.remove()
    products = [outputs * layer.weight[0].numel() for layer, outputs in layers]  # type: ignore[index, operator]
    return 2 * sum(products), 2 * (3 * sum(products) - (0 if words else products[0]))


if __name__ == "__main__":
    main()
