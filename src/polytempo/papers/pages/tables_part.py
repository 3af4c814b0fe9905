"""The tables of a paper's benchmarks as Markdown, with a chart for each."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from polytempo.papers.bench import Bench, Column, Table, benches
from polytempo.papers.claims.verdicts import Results
from polytempo.papers.markdown import reconstructed_note, seeds_note, table_lines, table_rows, target_note
from polytempo.papers.pages.chart import chart

Drawings = dict[str, str]
"""By path below the pages."""


def tables_part(paper: str, results: Results, drawings: Drawings) -> str:
    """All that is recorded, and what is not. Adds its charts to the drawings."""
    told: set[str] = set()
    lines: list[str] = []
    for bench in _benches_of(paper):
        tables = [table for table in bench.tables if any(results.measured(bench.name, table).values())]
        if not tables:
            continue
        lines += [
            f"## {bench.title.partition(', ')[2] or bench.title}",
            "",
            f"    polytempo bench {bench.name} --data-dir DIR",
        ]
        lines += ["", *_paragraph(_new(bench.notes, told))]
        for table in tables:
            lines += _section(bench, table, results, drawings, told)
    missing = list(_missing(paper, results))
    if missing:
        lines += ["## Not measured yet", "", *missing]
    return "\n".join(lines)


def is_measured(bench: str, table: str, results: Results) -> bool:
    """Has a table as many seeds as a verdict needs, of two rows or more?"""
    found = next(one for one in benches[bench].tables if one.name == table)
    return sum(len(runs) >= 3 for runs in results.measured(bench, found).values()) >= 2


def main_figure(bench: Bench, table: Table) -> Column:
    """What the chart of a table shows."""
    overview = bench.overview
    return overview if overview is not None and overview in table.columns else table.columns[0]


def _benches_of(paper: str) -> list[Bench]:
    return [bench for name, bench in benches.items() if name.partition("-")[0] == paper]


def _section(bench: Bench, table: Table, results: Results, drawings: Drawings, told: set[str]) -> list[str]:
    measured = results.measured(bench.name, table)
    seeds = max(map(len, measured.values()))
    shown = replace(bench, seeds=seeds)
    rows = table_rows(table, measured)
    there = replace(table, columns=[column for column in table.columns if _has_values(column, rows)])
    notes = [table.notes, reconstructed_note([_recorded(table, rows)]), seeds_note(shown), target_note(table)]
    lines = [f"### {table.title}", "", *_paragraph(_new(" ".join(filter(None, notes)), told))]
    column = main_figure(bench, there)
    drawn = chart(table.title, column, rows, _used(there, column))
    if drawn is not None:
        path = f"figures/{bench.name}-{table.name}.svg"
        drawings[path] = drawn
        lines += [f"![{table.title}: {column.title}]({path})", ""]
    return [*lines, *table_lines(shown, there, rows), "", *_paragraph(_stopped(bench, table, results))]


def _used(table: Table, column: Column) -> Column | None:
    """Beside the served model: what clients use."""
    beside = (one for one in table.columns if column.name == "accuracy" and one.name == "accuracy_used")
    return next(beside, None)


def _has_values(column: Column, rows: Sequence[Mapping[str, Any]]) -> bool:
    return any(row[column.title]["ours"] and any(v is not None for v in row[column.title]["ours"]) for row in rows)


def _recorded(table: Table, rows: Sequence[Mapping[str, Any]]) -> Table:
    labels = {row["label"] for row in rows}
    return replace(table, cases=[case for case in table.cases if case.label in labels])


def _stopped(bench: Bench, table: Table, results: Results) -> str:
    """How many runs ended because their curve was flat."""
    runs, flat = results.stopped(bench.name, table)
    return f"{flat} of {runs} runs were stopped because their curve was flat." if flat else ""


def _new(notes: str, told: set[str]) -> str:
    """The sentences that the page has not yet."""
    sentences = [sentence for sentence in re.split(r"(?<=[.!?]) +(?=[A-Z`])", notes) if sentence not in told]
    told.update(sentences)
    return " ".join(sentences)


def _paragraph(words: str) -> list[str]:
    return [words, ""] if words else []


def _missing(paper: str, results: Results) -> Iterator[str]:
    """A line for every benchmark with tables that have no record."""
    for bench in _benches_of(paper):
        tables = [table.name for table in bench.tables if not any(results.measured(bench.name, table).values())]
        if tables:
            yield f"- `polytempo bench {bench.name} --data-dir DIR`: {', '.join(f'`{name}`' for name in tables)}"
