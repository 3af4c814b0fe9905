"""FedAvg on MNIST (100 clients, 10 per round, 60 steps of 10 samples) beside other simulators: whole processes in turn,
each in an environment of its own.

    python -m venv pfl && pfl/bin/pip install 'pfl[pytorch]==0.6.0'
    python -m venv flower && flower/bin/pip install torch 'flwr[simulation]'
    python benchmarks/peers/fedavg.py DIR --pfl pfl/bin/python --flower flower/bin/python [--rounds 20] [--repeats 5]

DIR holds mnist/ with the idx files. "whole" is the process from start to end, ours with its report; "run" are the
rounds with the first and the last evaluation; "CPU" is the processor time of the whole process, which other load on the
machine hardly changes. Each is a median; ratios are medians over repeats, a peer's time by ours.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent


class Seconds(NamedTuple):
    whole: float
    run: float
    cpu: float
    accuracy: float


def ours(model: str, rounds: int, data_dir: Path, engine: str, out: str) -> list[str]:
    settings = {
        "--data": "mnist", "--data-dir": data_dir, "--clients": 100, "--partition": "iid", "--participation": "k:10",
        "--model": model, "--steps": 60, "--batch-size": 10, "--lr": 0.05, "--updates": 10 * rounds,
        "--eval-every": 10 * rounds, "--engine": engine, "--workers": 2, "--out": out,
    }  # fmt: skip
    options = [str(part) for pair in settings.items() for part in pair]
    return [sys.executable, "-m", "polytempo", "run", "fedavg", *options, "--quiet", "--json"]


def measured(command: list[str]) -> Seconds:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    whole, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    told = json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Seconds(whole, told.get("run") or told["wall_seconds"], cpu, told.get("accuracy") or told["final_accuracy"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--pfl", help="a Python that has pfl")
    parser.add_argument("--flower", help="a Python that has flwr")
    parser.add_argument("--models", nargs="+", default=["mlp", "cnn"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print("model  simulator   whole s    run s    CPU s   whole     run     CPU accuracy")
    for model in options.models:
        compare(model, options)


def compare(model: str, options: argparse.Namespace) -> None:
    peers = {name: python for name, python in (("pfl", options.pfl), ("flower", options.flower)) if python}
    taken: dict[str, list[Seconds]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for repeat in range(options.repeats + 1):
            commands = {
                name: ours(model, options.rounds, options.data_dir, engine, f"{scratch}/{name}-{repeat}")
                for name, engine in (("ours", "auto"), ("ours eager", "eager"))
            }
            for name, python in peers.items():
                script = HERE / f"{name}_fedavg.py"
                commands[name] = [python, str(script), model, str(options.rounds), str(options.data_dir)]
            for name, command in commands.items():
                seconds = measured(command)
                if repeat:  # the first time compiles, and fills the page cache
                    taken.setdefault(name, []).append(seconds)
    for name, repeats in taken.items():
        medians = [statistics.median(part) for part in zip(*repeats, strict=True)]
        pairs = list(zip(repeats, taken["ours"], strict=True))
        ratios = [statistics.median(theirs[i] / own[i] for theirs, own in pairs) for i in range(3)]
        seconds = " ".join(f"{value:8.2f}" for value in medians[:3])
        print(f"{model:6} {name:10} {seconds} {' '.join(f'{r:6.2f}x' for r in ratios)} {medians[3]:8.4f}", flush=True)


if __name__ == "__main__":
    main()
