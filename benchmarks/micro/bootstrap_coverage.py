"""How often the bootstrap interval over seeds holds the true mean (docs/guides/statistics.md)."""

import numpy as np

from polytempo.report.facts.significance import bootstrap_interval

SEEDS = (3, 5, 8, 12)
DRAWS = 4000


def coverage(seeds: int) -> float:
    """The share of draws of normally distributed differences whose interval holds their mean, 0."""
    draws = np.random.default_rng(seeds).normal(size=(DRAWS, seeds))
    return float(np.mean([low <= 0 <= high for low, high in map(bootstrap_interval, draws)]))


if __name__ == "__main__":
    for seeds in SEEDS:
        print(f"{seeds:3} seeds: {coverage(seeds):.1%}")
