"""Is a paper's method beaten by a simpler one, or by a part of itself, wherever both have been measured?"""

import json
import math
from collections.abc import Iterator
from statistics import fmean
from typing import NamedTuple

from polytempo.papers.bench import Bench, Column, Table, benches
from polytempo.papers.claims.claims import Paper
from polytempo.papers.claims.verdicts import FEWEST_SEEDS, Results, half_interval
from polytempo.report.facts.numbers import counted

FEWEST_WORLDS = 2


class World(NamedTuple):
    """A table that has the paper's method."""

    bench: Bench
    table: Table
    figure: Column


def ahead_part(paper: Paper, results: Results) -> str:
    """The rows that are ahead of the paper's method in every world that has both."""
    worlds = list(_worlds(paper))
    rivals: dict[str, list[bool]] = {}
    for world in worlds:
        for rival, is_ahead in _against(paper, world, results).items():
            rivals.setdefault(rival, []).append(is_ahead)
    compared = {rival: found for rival, found in rivals.items() if len(found) >= FEWEST_WORLDS}
    beaten_by = [f"`{rival}` ({counted(len(found), 'world')})" for rival, found in compared.items() if all(found)]
    if not compared:
        return (
            f"Whether a simpler method is ahead of `{paper.name}` everywhere cannot be said yet: no row has three "
            f"seeds in two worlds that also have `{paper.name}`."
        )
    if not beaten_by:
        rows = counted(len(compared), "row")
        return f"None of {rows} that were measured in two worlds or more is ahead of `{paper.name}` in all of them."
    return f"Ahead of `{paper.name}` in every world that has both, by intervals over seeds: {', '.join(beaten_by)}."


def _worlds(paper: Paper) -> Iterator[World]:
    """Tables with other settings each: the same world in two benchmarks counts once."""
    seen: set[str] = set()
    for name, bench in benches.items():
        if name.partition("-")[0] != paper.name or bench.overview is None:
            continue
        for table in bench.tables:
            settings = json.dumps(table.settings, sort_keys=True, default=str)
            if paper.name in [case.label for case in table.cases] and settings not in seen:
                seen.add(settings)
                yield World(bench, table, bench.overview)


def _against(paper: Paper, world: World, results: Results) -> dict[str, bool]:
    """Of every row with enough seeds in common: is it ahead?"""
    figures = results.measured(world.bench.name, world.table)
    mine = _values(figures[paper.name], world.figure.name)
    found = {}
    for label, runs in figures.items():
        theirs = _values(runs, world.figure.name)
        seeds = mine.keys() & theirs.keys()
        if label.partition(",")[0] == paper.name or len(seeds) < FEWEST_SEEDS:
            continue
        gains = [_gain(theirs[seed], mine[seed], world.figure) for seed in sorted(seeds)]
        found[label] = fmean(gains) - half_interval(gains) > 0
    return found


def _values(runs: object, name: str) -> dict[int, float]:
    assert isinstance(runs, dict)
    return {seed: of[name] for seed, of in runs.items() if of.get(name) is not None}


def _gain(theirs: float, mine: float, figure: Column) -> float:
    """Times are better the shorter they are."""
    return math.log(mine / theirs) if figure.name.startswith("time") else theirs - mine
