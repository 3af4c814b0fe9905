"""Tables as Markdown: our figures over seeds, the paper's beside them."""

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from polytempo.papers.bench import Bench, Case, Column, Table
from polytempo.papers.records import Figures, Measured
from polytempo.strategies import RECONSTRUCTED, is_reconstructed


def table_rows(table: Table, figures: Measured) -> list[dict[str, Any]]:
    """For each row that was run its label, its seeds and, by column title, ``ours`` (one figure per seed) and
    ``paper`` (only where the paper gives one)."""
    return [
        {
            "label": case.label,
            "seeds": list(figures[case.label]),
            **{column.title: _cell(table, case, column, figures) for column in table.columns},
        }
        for case in table.cases
        if figures[case.label]
    ]


def _cell(table: Table, case: Case, column: Column, figures: Measured) -> dict[str, Any]:
    mine = figures[case.label]
    ours = [_scaled(of[column.name], column) for of in mine.values() if column.name in of]
    paper = {"paper": case.paper[column.name]} if column.published and column.name in case.paper else {}
    if not column.relative:
        return {"ours": ours, **paper}
    base = next((other for other in table.cases if other.label == (column.base or case.base)), None)
    if base is None:
        return {"ours": [None] * len(ours)}
    ratios = _ratios(mine, figures[base.label], column.name)
    of_base = base.paper.get(column.name)
    return {"ours": ratios, **{key: _ratio(value, of_base) for key, value in paper.items() if of_base}}


def _ratios(mine: Mapping[int, Figures], bases: Mapping[int, Figures], name: str) -> list[float | None]:
    """Of the seeds that have something to divide by."""
    return [_ratio(of[name], bases[seed][name]) for seed, of in mine.items() if bases.get(seed, {}).get(name)]


def _scaled(value: float | None, column: Column) -> float | None:
    return None if value is None else value * column.scale


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None


def table_page(bench: Bench, table: Table, rows: Sequence[Mapping[str, Any]]) -> str:
    """A table with what there is to say of it."""
    lines = [
        f"# {bench.title}: {table.title}",
        "",
        " ".join(filter(None, (bench.notes, table.notes, reconstructed_note([table])))),
        "",
        " ".join(filter(None, (seeds_note(bench), target_note(table)))),
        "",
        *table_lines(bench, table, rows),
    ]
    return "\n".join(lines) + "\n"


def table_lines(bench: Bench, table: Table, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table alone."""
    published = [column for column in table.columns if any("paper" in row[column.title] for row in rows)]
    titles = ["method"]
    for column in table.columns:
        titles += [column.title, f"{column.title}, paper"] if column in published else [column.title]
    lines = table_head(titles)
    for row in rows:
        cells = [row["label"] + _other_seeds(bench, row)]
        for column in table.columns:
            cells.append(ours_cell(row[column.title]["ours"], column))
            if column in published:
                cells.append(papers_cell(row[column.title], column))
        lines.append(table_line(cells))
    return lines


def reconstructed_note(tables: Sequence[Table]) -> str:
    """What to say of tables that have rows of reconstructed methods."""
    strategies = {{**table.settings, **case.settings}["strategy"] for table in tables for case in table.cases}
    return RECONSTRUCTED if any(map(is_reconstructed, strategies)) else ""


def both_figures(cell: Mapping[str, Any] | None, column: Column) -> str:
    """Ours and, in brackets, the paper's."""
    if cell is None:
        return "–"
    ours = ours_cell(cell["ours"], column)
    return f"{ours} ({papers_cell(cell, column)})" if "paper" in cell else ours


def seeds_note(bench: Bench) -> str:
    which = f" ({bench.all_seeds()[0]} to {bench.all_seeds()[-1]})" if bench.first_seed else ""
    return f"{bench.seeds} seeds{which}, mean ± standard deviation." if bench.seeds > 1 else "One seed."


def _other_seeds(bench: Bench, row: Mapping[str, Any]) -> str:
    """What to say of a row that has not as many seeds as the others."""
    known = len(row["seeds"])
    of = f" of {bench.seeds}" if known < bench.seeds else ""
    return "" if known == bench.seeds else f" ({known}{of} seeds)"


def target_note(table: Table) -> str:
    target = table.settings.get("target")
    return f"Target accuracy {target:.0%}." if target is not None else ""


def table_head(titles: Sequence[str]) -> list[str]:
    return [table_line(titles), "|---" + "|---:" * (len(titles) - 1) + "|"]


def table_line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def ours_cell(values: Sequence[float | None], column: Column) -> str:
    there = [value for value in values if value is not None]
    if not there:
        return column.missing if values else "–"
    text = f"{mean(there):,.{column.digits}f}"
    if len(there) > 1:
        text += f" ± {stdev(there):,.{column.digits}f}"
    return text if len(there) == len(values) else f"{text}, {len(there)} of {len(values)} seeds"


def papers_cell(cell: Mapping[str, Any], column: Column) -> str:
    if "paper" not in cell:
        return "–"
    return "not reached" if cell["paper"] is None else f"{cell['paper']:.{column.digits}f}"
