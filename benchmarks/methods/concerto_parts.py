"""What each part of Concerto brings: runs without it, in worlds of the benchmarks ``natural`` and ``concerto``.

    python benchmarks/methods/concerto_parts.py --data-dir DIR [--world uci-har] [--seeds 3] [--out results/parts]

Prints used accuracy, and the shares of clients that are better and worse off than alone, as means over the seeds from 4
on. Finished runs are kept in --out: a benchmark that was interrupted goes on from there."""

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from statistics import mean
from typing import Any
from unittest.mock import patch

from polytempo.papers import benches
from polytempo.papers.rivals import ALONE, FIRST_SEED
from polytempo.report.facts.alone import share_better_off, share_worse_off
from polytempo.report.run import Run
from polytempo.sim.directory import is_finished
from polytempo.sim.experiment import make_experiment
from polytempo.sim.run import run_experiment

WORLDS = {table.name: table.settings for name in ("natural", "concerto") for table in benches[name].tables}
CHOSEN = ("uci-har", "wisdm", "mit-bih", "mnist-groups-fast", "mnist-iid", "fashion-labels-scarce")


def constant(name: str, value: object) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: patch(name, value)


WITHOUT: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "concerto": ExitStack,
    "branches": constant(
        "polytempo.strategies.methods.concerto.Directions.grouping", lambda self, clients: _one_group(clients)
    ),
    "rehearsals with new lines": constant("polytempo.strategies.methods.concerto.REHEARSALS", 0),
    "rehearsals where it would keep much": constant("polytempo_client.personal.rule.KEEPS_MUCH", float("inf")),
    "starting from its own": constant("polytempo_client.personal.rule.KEEPING", 0.0),
    "the choice of what to use (always its own)": constant("polytempo.learn.rules.jury.using", lambda *_: 0.0),
    "the average of its own": constant("polytempo_client.personal.rule.AVERAGING", 1.0),
    "the tryout": constant("polytempo.strategies.parts.tryout.Tryout.plays_solo", lambda *_: False),
    "the jury's rows given back": constant("polytempo_client.personal.rule.ENOUGH_SOLO_TASKS", float("inf")),
}


def _one_group(clients: Any) -> Any:
    from polytempo.strategies.parts.directions import Grouping

    return Grouping([list(clients)], 0.0)


def run_of(world: str, strategy: str, seed: int, given: argparse.Namespace, without: str = "") -> Run:
    settings = {**WORLDS[world], "strategy": strategy, "seed": seed, "data_dir": given.data_dir}
    experiment = make_experiment(**settings)
    directory = given.out / f"{world}-{strategy}-{seed}-{without.replace(' ', '-') or 'whole'}"
    if not is_finished(experiment, directory):
        run_experiment(experiment, directory)
    return Run.load(directory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--world", action="append", choices=list(WORLDS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("results/parts"))
    given = parser.parse_args()
    seeds = range(FIRST_SEED, FIRST_SEED + given.seeds)
    for world in given.world or CHOSEN:
        alone = [run_of(world, ALONE, seed, given) for seed in seeds]
        print(f"\n| {world} | used % | better off % | worse off % |\n|---|---:|---:|---:|")
        print(f"| alone | {100 * mean(run.accuracy_used for run in alone):.1f} | | |", flush=True)
        for name, patched in WITHOUT.items():
            with patched():
                runs = [run_of(world, "concerto", seed, given, name) for seed in seeds]
            pairs = list(zip(runs, alone, strict=True))
            used = mean(run.accuracy_used for run in runs)
            better, worse = (mean(of(*pair) or 0.0 for pair in pairs) for of in (share_better_off, share_worse_off))
            label = name if name == "concerto" else f"without {name}"
            print(f"| {label} | {100 * used:.1f} | {100 * better:.0f} | {100 * worse:.0f} |", flush=True)


if __name__ == "__main__":
    main()
