"""How much of a run is neither training nor evaluation: FedAsync, 100 clients, 2,000 updates, 784-100-10 mlp on MNIST.

    python benchmarks/micro/overhead.py [--data-dir DIR]

Bar: overhead_seconds at most 5 % of wall_seconds. Without MNIST in the data directory, random images of its size are
used. The share of the workers' time that is spent in training is printed beside."""

import argparse
from pathlib import Path

import numpy as np

from polytempo import simulate
from polytempo.core.errors import UserError
from polytempo.world.data import load_dataset
from polytempo.world.dataset import Dataset


def images() -> Dataset:
    """Random images of MNIST's size."""
    rng = np.random.default_rng(0)
    return Dataset("random", rng.random((70_000, 1, 28, 28), np.float32), rng.integers(0, 10, 70_000), 10, 60_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    options = parser.parse_args()
    try:
        load_dataset("mnist", options.data_dir)
        data = "mnist"
    except UserError:
        data = f"{__file__}:images"
    settings = {"data": data, "data_dir": options.data_dir, "clients": 100, "model": "mlp", "lr": 0.01}
    simulate("fedasync", updates=100, **settings)  # warm up: compilation, page cache
    print(f"{data}: FedAsync, 100 clients, 2,000 updates")
    for workers in (1, 2):
        run = simulate("fedasync", updates=2000, workers=workers, **settings)
        print(
            f"  {workers} worker(s): wall {run.wall_seconds:.2f} s, overhead {run.overhead_seconds:.3f} s "
            f"({run.overhead_seconds / run.wall_seconds:.1%} of wall; bar 5 %), "
            f"{run.client_steps / run.wall_seconds:,.0f} client-steps/s, "
            f"training fills {run.train_seconds / run.wall_seconds / workers:.0%} of the workers' time"
        )


if __name__ == "__main__":
    main()
