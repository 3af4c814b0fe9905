"""The figures of one evaluation."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.metrics import adjusted_rand_score

from polytempo.strategies.strategy import Strategy
from polytempo.world.devices import Devices


def evaluation_row(
    now: float,
    updates: int,
    served: np.ndarray,
    trained: np.ndarray,
    strategy: Strategy,
    groups: Sequence[int] | None,
    devices: Devices,
) -> dict[str, Any]:
    """Served accuracy over clients (mean, spread, slowest and fastest fifth), own-model accuracy, clusters."""
    clusters = [strategy.cluster_of(client) for client in range(len(served))]
    known = trained[~np.isnan(trained)]
    return {
        "time": now,
        "updates": updates,
        "accuracy": float(served.mean()),
        "accuracy_trained": float(known.mean()) if len(known) else None,
        "accuracy_std": float(served.std()),
        "accuracy_slowest_fifth": float(served[devices.slowest_fifth()].mean()),
        "accuracy_fastest_fifth": float(served[devices.fastest_fifth()].mean()),
        "clusters": len(set(clusters)),
        "ari": None if groups is None else float(adjusted_rand_score(groups, clusters)),
        "per_client": served.tolist(),
        "per_client_trained": [None if np.isnan(score) else float(score) for score in trained],
    }
