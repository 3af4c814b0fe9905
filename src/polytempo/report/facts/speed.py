"""How fast clients are, and how long they wait."""

import numpy as np

from polytempo.report.facts.choosing import evenly
from polytempo.report.facts.contenders import Contender
from polytempo.report.run import Run

SLOW = 2.0  # times the median seconds per step


def slowest_to_fastest(run: Run, most: int) -> np.ndarray:
    """Clients by mean seconds per step, slowest first, evenly chosen with both ends; who never handed in counts as
    slowest."""
    order = np.argsort(-seconds_per_step(run), kind="stable")
    chosen: np.ndarray = order[evenly(len(order), most)]
    return chosen


def seconds_per_step(run: Run) -> np.ndarray:
    """For every client the mean time that an update took, per step; infinite for who never handed in."""
    client = run.over_updates("client").astype(int)
    if not len(client):
        return np.full(run.clients(), np.inf)
    seconds = np.bincount(client, run.over_updates("time") - training_began(run), run.clients())
    steps = np.bincount(client, run.over_updates("steps"), run.clients())
    return np.where(steps > 0, seconds / np.maximum(steps, 1), np.inf)


def training_began(run: Run) -> np.ndarray:
    """For every update when it was dispatched or, where the client held its model first, when that was over."""
    return np.array([row.get("asked", row["began"]) for row in run.update_log], dtype=float)


def slow_clients(run: Run) -> np.ndarray:
    """For every client, does it need more than twice the median time per step? Unknown is not slow."""
    pace = seconds_per_step(run)
    handed_in = np.isfinite(pace)
    return handed_in & (pace > SLOW * np.median(pace[handed_in])) if handed_in.any() else handed_in


def idle_by_speed(contender: Contender) -> np.ndarray:
    """Idle shares of clients from the slowest to the fastest, means over the seeds at each place; empty if unknown."""
    shares = [(run, run.per_client("per_client_idle", -1)) for run in contender.runs]
    by_speed = [idle[slowest_to_fastest(run, len(idle))] for run, idle in shares if len(idle)]
    ordered = [idle[~np.isnan(idle)] for idle in by_speed]
    fewest = min(map(len, ordered), default=0)
    return np.mean([idle[:fewest] for idle in ordered], axis=0) if ordered else np.array([])
