"""Record what EchoPFL's predictor is pre-trained on: how much each aggregation changed a cluster's model, and how far
the model then was from the last one broadcast. Writes the module that holds them.

    python benchmarks/micro/echo_states.py --data-dir DATA > src/polytempo/strategies/parts/echo_states.py
"""

import argparse
import textwrap
from pathlib import Path

from torch import Tensor

from polytempo.sim.experiment import make_experiment
from polytempo.sim.run import run_experiment
from polytempo.strategies.parts.echo import Echo
from polytempo.strategies.parts.echo_predictor import LAST
from polytempo_client.streams import stream

HEAD = '''\
"""States of one cluster over 1,210 aggregations, of which EchoPFL's predictor learns before it is used: how much each
changed its model, and how far the model then was from the last one broadcast. Recorded on MNIST, 60 clients in label
groups, 30 % slow by 5, a broadcast after every other one, at random (benchmarks/micro/echo_states.py)."""
'''
STATES = 1_200
WORLD = {"data": "mnist", "clients": 60, "partition": "groups", "devices": "slow:0.3x5", "test_share": 0.9}
WORK = {"batch_size": 10, "steps": 12, "lr": 0.05, "updates": 3_000, "eval_every": 3_000}


def recorded(data_dir: Path) -> list[tuple[float, float]]:
    """The states of the cluster with the most of them."""
    of_clusters: dict[int, list[tuple[float, float]]] = {}
    alive = []
    record = Echo.record

    def note(echo: Echo, model: Tensor, change: float) -> None:
        record(echo, model, change)
        alive.append(echo)
        of_clusters.setdefault(id(echo), []).append((change, echo.accumulated))

    coins = stream(0, "echo states")
    Echo.record = note  # type: ignore[method-assign]
    Echo.decide = lambda *_: coins.random() < 0.5  # type: ignore[method-assign]
    settings = {**WORLD, **WORK, "parameters": {"preset": "paper", "refine_every": 0}}
    run_experiment(make_experiment(strategy="echopfl", data_dir=data_dir, **settings))
    return max(of_clusters.values(), key=len)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True, help="where MNIST lies")
    states = recorded(parser.parse_args().data_dir)[: STATES + LAST]
    assert len(states) == STATES + LAST
    print(HEAD)
    for name, column in (("CHANGES", 0), ("ACCUMULATED", 1)):
        numbers = " ".join(f"{state[column]:.3g}" for state in states)
        print(f'{name} = """\n{textwrap.fill(numbers, 119)}\n"""')
    print("\nRECORDED = tuple(zip(map(float, CHANGES.split()), map(float, ACCUMULATED.split()), strict=True))")


if __name__ == "__main__":
    main()
