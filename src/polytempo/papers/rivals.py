"""The rows and columns of the benchmarks of Concerto: its rivals, and whether clients are better off than alone."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from polytempo.papers.bench import Case, Column, Table
from polytempo.papers.figures import ALONE, OFF
from polytempo.report.run import Run

METHODS = (
    ALONE,
    "standalone-again",
    "fedavg",
    "fedasync",
    "fedbuff",
    "casa",
    "pace",
    "fedamp-async",
    "echopfl",
    "concerto",
    "apfl",
    "ditto",
    "fedala",
)
NO_RIVALS = (ALONE, "standalone-again", "concerto")
WITH_THE_RULE = ("fedbuff", "casa", "pace")
PAPERS_CASA = {"strategy": "casa", "parameters": {"preset": "paper"}}
BY_L1 = {"strategy": "echopfl", "parameters": {"preset": "paper", "broadcast": "accumulated", "rho": 5.0}}
ROWS: dict[str, dict[str, Any]] = {
    **{name: {"strategy": name} for name in METHODS},
    "casa, paper's settings": PAPERS_CASA,
    "echopfl, by l1": BY_L1,
    **{f"{name} + personal": {"strategy": name, "personal": True} for name in WITH_THE_RULE},
    "casa, paper's settings + personal": {**PAPERS_CASA, "personal": True},
}
"""CASA and EchoPFL also with the defaults that they had when Concerto was compared with them."""
CHOOSING_SEED = 1
"""The best rival of a world is picked on this seed. Concerto was changed because of what it did on seeds 1 to 3."""
FIRST_SEED = 4
"""The constants of Concerto were chosen on seed 0 and on seeds from 10 on."""
SET_UP = (
    "Not from a paper. All methods have their default parameters and the same world. Used: what clients work with; "
    "served: what they would be sent; own: what they trained last. Better and worse off than alone: the shares of "
    "clients by a paired test on their own test rows; standalone-again is what chance does. MB down: what clients "
    "download, as a multiple of FedAsync's. Time: virtual time until the used accuracy is what Standalone has at the "
    "end, as a multiple of Standalone's own; both are read off evaluations."
)


def time_to_alone(run: Run, alone: Run) -> float | None:
    """The virtual time until clients use models as good as Standalone's last ones, as a multiple of what Standalone
    takes; None if the run never gets there."""
    goal = _used(alone)[-1]
    mine, theirs = _first_time(run, goal), _first_time(alone, goal)
    return mine / theirs if mine is not None and theirs else None


def _used(run: Run) -> np.ndarray:
    return run.over_evaluations("accuracy_used")


def _first_time(run: Run, goal: float) -> float | None:
    there = np.flatnonzero(_used(run) >= goal)
    return float(run.over_evaluations("time")[there[0]]) if len(there) else None


USED = Column("accuracy_used", "used %", scale=100.0, digits=1)
COLUMNS = (
    USED,
    Column("accuracy", "served %", scale=100.0, digits=1),
    Column("accuracy_trained", "own %", scale=100.0, digits=1),
    *OFF,
    Column("bytes_down", "MB down / fedasync", relative=True, base="fedasync"),
    Column("time_to_alone", "time / standalone", compare=time_to_alone, missing="not reached"),
)


def rivals_table(
    name: str, title: str, settings: Mapping[str, Any], notes: str = "", block: str = "", more: tuple[str, ...] = ()
) -> Table:
    """All rows in one world, and those of other methods that apply there."""
    rows = {**ROWS, **{name: {"strategy": name} for name in more}}
    no_rivals = (*NO_RIVALS, *(label for label, row in rows.items() if "personal" in row))
    cases = [Case(label, row, base=ALONE, rival=label not in no_rivals) for label, row in rows.items()]
    return Table(name, title, notes, settings, cases, COLUMNS, block=block or "Used accuracy", heading=title)
