"""Figures that the tables of several papers have, and what is read off the curve of a run."""

import numpy as np

from polytempo.papers.bench import Column
from polytempo.report.facts.alone import share_better_off, share_worse_off
from polytempo.report.run import Run

ALONE = "standalone"
NEAR = 0.01
"""A run has converged when its accuracy is first within a point of the best that it reaches."""


def best_accuracy(run: Run) -> float:
    """The highest used accuracy of all evaluations."""
    return float(run.over_evaluations("accuracy_used").max())


def time_to_converge(run: Run) -> float:
    """The virtual time at which the used accuracy is first within a point of its best."""
    used = run.over_evaluations("accuracy_used")
    return float(run.over_evaluations("time")[np.flatnonzero(used >= used.max() - NEAR)[0]])


def bytes_to_converge(run: Run) -> float:
    """Bytes up and down until then."""
    converged = int(np.flatnonzero(run.over_evaluations("time") >= time_to_converge(run))[0])
    return float(sum(run.over_evaluations(name)[converged] for name in ("bytes_up", "bytes_down")))


def share_equally_off(run: Run, alone: Run) -> float | None:
    """The share of clients that are neither better nor worse off than alone."""
    better, worse = share_better_off(run, alone), share_worse_off(run, alone)
    return None if better is None or worse is None else 1 - better - worse


USED = Column("accuracy_used", "used %", scale=100.0, published=False)
OWN = Column("accuracy_trained", "own %", scale=100.0, published=False)
OFF = (
    Column("better_off", "better off %", scale=100.0, digits=0, compare=share_better_off, base=ALONE),
    Column("equally_off", "equal %", scale=100.0, digits=0, compare=share_equally_off, base=ALONE),
    Column("worse_off", "worse off %", scale=100.0, digits=0, compare=share_worse_off, base=ALONE),
)
"""The shares of clients that are better off, equal and worse off than alone."""
BEST = Column("best", "best %", scale=100.0, of=best_accuracy)
CONVERGED = Column("time_to_converge", "time to converge s", digits=0, published=False, of=time_to_converge)
LENGTH = (Column("virtual_time", "virtual time s", digits=0), Column("updates", "updates", digits=0))
