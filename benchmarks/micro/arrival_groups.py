"""How many arrival groups Compass keeps open at steady speeds, beside the bound of the FedCompass paper (Appendix B).

    python benchmarks/micro/arrival_groups.py [--draws 60]

mu is how many times as long the slowest client takes for a step as the fastest, Q is Q_max / Q_min (Q_min is 20). The
paper says that at equilibrium at most ceil(log_Q mu) groups are open. Here the fastest needs 1 s per step, the slowest
mu s, the logarithms of the others lie uniformly between, and that of mu lies uniformly in its range. Each draw runs for
20 rounds of its slowest client; what counts is the most groups that are open at once in the last 8 of them. No models
are trained: the scheduler is all there is. Printed as a Markdown table, with one row for each Q and range of mu. The
first range of each Q is within Q, where the bound is one group."""

import argparse
import heapq
from collections.abc import Sequence
from math import ceil, log

import numpy as np

from polytempo.strategies.parts.compass import Compass
from polytempo_client.streams import stream

FEWEST = 20
CLIENTS = (5, 10, 20)
RATIOS = (2, 5, 10)
SLOWEST = 100.0
ROUNDS, COUNTED = 20, 8
LATEST_FACTOR = 1.2


def most_open_groups(seconds: Sequence[float], most: int) -> int:
    """Groups open at once, at most, when clients with these seconds per step have been at it for a while."""
    compass = Compass(FEWEST, most, LATEST_FACTOR)
    arrivals: list[tuple[float, int]] = []

    def assign(client: int, now: float) -> None:
        compass.assign(client, now)
        heapq.heappush(arrivals, (now + compass.planned[client].steps * seconds[client], client))

    for client in range(len(seconds)):
        assign(client, 0.0)
    slowest_round = most * max(seconds)
    seen = 0
    while arrivals[0][0] < ROUNDS * slowest_round:
        now, client = heapq.heappop(arrivals)
        group = compass.arrive(client, now, compass.planned[client].steps)
        free = [client] if group is None else [] if group.waiting else compass.close(group.number)
        for member in free:
            assign(member, now)
        if now >= (ROUNDS - COUNTED) * slowest_round:
            seen = max(seen, len(compass.groups))
    return seen


def groups_of_draw(ratio: int, low: float, high: float, number: int) -> int:
    rng = stream(0, "arrival groups", ratio, int(low), number)
    mu = float(np.exp(rng.uniform(log(low), log(high))))
    between = mu ** rng.random(CLIENTS[number % len(CLIENTS)] - 2)
    return most_open_groups([1.0, *between.tolist(), mu], FEWEST * ratio)


def row(ratio: int, bound: int, draws: int) -> str:
    """Of a range of mu in which the bound does not change: between two powers of Q."""
    low, high = float(ratio ** (bound - 1)), min(float(ratio**bound), SLOWEST)
    groups = np.array([groups_of_draw(ratio, low, high, number) for number in range(draws)])
    above = np.mean(groups > bound)
    return f"| {ratio} | {low:g} to {high:g} | {draws} | {bound} | {groups.mean():.2f} | {groups.max()} | {above:.0%} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=60, help="per row, over 5, 10 and 20 clients in turn")
    draws = parser.parse_args().draws
    print("| Q | mu | draws | bound | groups, mean | groups, most | draws above the bound |")
    print("|---|---|---|---|---|---|---|")
    for ratio in RATIOS:
        for bound in range(1, ceil(log(SLOWEST, ratio) - 1e-9) + 1):
            print(row(ratio, bound, draws), flush=True)


if __name__ == "__main__":
    main()
