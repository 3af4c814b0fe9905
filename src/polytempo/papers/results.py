"""What a benchmark leaves: every table as JSON, Markdown, a plot and a report."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from polytempo.papers.bench import Bench, Case, Column, Table, run_table
from polytempo.report.run import Run
from polytempo.sim.run import Progress

OVERVIEW = "overview.md"


def run_bench(
    bench: Bench,
    whole: Bench,
    out: Path,
    data_dir: Path | None,
    begin: Callable[[str], None],
    progress: Callable[[Progress], None],
) -> list[Path]:
    """Run what is missing in ``out/runs`` and write each table, as soon as it is complete, to ``out/BENCH/TABLE`` as
    .json, .md, .svg and .html; the paths of the Markdown. A benchmark with an overview has it in
    ``out/BENCH/overview.md``: of all tables of the whole that are there, whenever they were run."""
    written = []
    for table in bench.tables:
        runs = run_table(bench, table, out / "runs", data_dir, begin, progress)
        written.append(_write(bench, table, runs, out / bench.name))
        if bench.overview is not None:
            (out / bench.name / OVERVIEW).write_text(_overview(bench, bench.overview, whole.tables, out / bench.name))
    return [*written, out / bench.name / OVERVIEW] if bench.overview is not None else written


def _write(bench: Bench, table: Table, runs: Mapping[str, Sequence[Run]], directory: Path) -> Path:
    from polytempo.report.drawing.canvas import save  # here, because matplotlib takes a while to import
    from polytempo.report.drawing.figures import accuracy_over_time
    from polytempo.report.page import write_report

    directory.mkdir(parents=True, exist_ok=True)
    rows = table_rows(table, runs)
    everything = [run for case in table.cases for run in runs[case.label]]
    page = directory / f"{table.name}.html"
    page.with_suffix(".json").write_text(
        json.dumps({"bench": bench.name, "table": table.name, "settings": dict(table.settings), "rows": rows}, indent=1)
    )
    save(accuracy_over_time(everything), page.with_suffix(".svg"))
    write_report(everything, page, f"{bench.title}: {table.title}")
    page.with_suffix(".md").write_text(_markdown(bench, table, rows))
    return page.with_suffix(".md")


def table_rows(table: Table, runs: Mapping[str, Sequence[Run]]) -> list[dict[str, Any]]:
    """For each row its label and, by column title, ``ours`` (one figure per seed) and ``paper`` (only where the paper
    gives one)."""
    return [
        {"label": case.label, **{column.title: _cell(table, case, column, runs) for column in table.columns}}
        for case in table.cases
    ]


def _cell(table: Table, case: Case, column: Column, runs: Mapping[str, Sequence[Run]]) -> dict[str, Any]:
    base = next((other for other in table.cases if other.label == (column.base or case.base)), None)
    if column.compare is not None:
        pairs = zip(runs[case.label], runs[base.label], strict=True) if base is not None else ()
        return {"ours": [_scaled(column.compare(run, of_base), column) for run, of_base in pairs]}
    ours = _values(runs[case.label], column)
    paper = {"paper": case.paper[column.name]} if column.published and column.name in case.paper else {}
    if not column.relative:
        return {"ours": ours, **paper}
    if base is None:
        return {"ours": [None] * len(ours)}
    of_bases = _values(runs[base.label], column)
    ratios = [_ratio(a, b) for a, b in zip(ours, of_bases, strict=True) if b]  # seeds that have something to divide by
    of_base = base.paper.get(column.name)
    return {"ours": ratios, **{key: _ratio(value, of_base) for key, value in paper.items() if of_base}}


def _values(runs: Sequence[Run], column: Column) -> list[float | None]:
    return [_scaled(column.of(run) if column.of else run.result.get(column.name), column) for run in runs]


def _scaled(value: float | None, column: Column) -> float | None:
    return None if value is None else value * column.scale


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None


def _markdown(bench: Bench, table: Table, rows: Sequence[Mapping[str, Any]]) -> str:
    published = [column for column in table.columns if any("paper" in row[column.title] for row in rows)]
    titles = ["method"]
    for column in table.columns:
        titles += [column.title, f"{column.title}, paper"] if column in published else [column.title]
    lines = [
        f"# {bench.title}: {table.title}",
        "",
        " ".join(filter(None, (bench.notes, table.notes))),
        "",
        " ".join(filter(None, (_seeds(bench), _target(table)))),
        "",
        *_head(titles),
    ]
    for row in rows:
        cells = [row["label"]]
        for column in table.columns:
            cells.append(_ours(row[column.title]["ours"], column))
            if column in published:
                cells.append(_papers(row[column.title], column))
        lines.append(_line(cells))
    return "\n".join(lines) + "\n"


def _overview(bench: Bench, column: Column, tables: Sequence[Table], directory: Path) -> str:
    """One figure of all tables: for each block its rows by label and a column per table; in a cell ours and, in
    brackets, the paper's."""
    there = [table for table in tables if (directory / f"{table.name}.json").exists()]
    cells = {
        table.name: {
            row["label"]: row[column.title]
            for row in json.loads((directory / f"{table.name}.json").read_text())["rows"]
        }
        for table in there
    }
    lines = [
        f"# {bench.title}: {column.title}",
        "",
        bench.notes,
        "",
        "Mean ± standard deviation over seeds. In brackets: the paper.",
    ]
    for block in dict.fromkeys(table.block for table in there):
        side_by_side = [table for table in there if table.block == block]
        labels = dict.fromkeys(label for table in side_by_side for label in cells[table.name])
        lines += ["", f"## {block}", "", *_head(["method", *(table.heading for table in side_by_side)])]
        lines += [
            _line([label, *(_both(cells[table.name].get(label), column) for table in side_by_side)]) for label in labels
        ]
        lines.append(_line(["seeds that count", *(str(_seeds_in(cells[table.name])) for table in side_by_side)]))
    return "\n".join(lines) + "\n"


def _seeds_in(cells: Mapping[str, Mapping[str, Any]]) -> int:
    return max(len(cell["ours"]) for cell in cells.values())


def _both(cell: Mapping[str, Any] | None, column: Column) -> str:
    if cell is None:
        return "–"
    ours = _ours(cell["ours"], column)
    return f"{ours} ({_papers(cell, column)})" if "paper" in cell else ours


def _seeds(bench: Bench) -> str:
    which = f" ({bench.all_seeds()[0]} to {bench.all_seeds()[-1]})" if bench.first_seed else ""
    return f"{bench.seeds} seeds{which}, mean ± standard deviation." if bench.seeds > 1 else "One seed."


def _target(table: Table) -> str:
    target = table.settings.get("target")
    return f"Target accuracy {target:.0%}." if target is not None else ""


def _head(titles: Sequence[str]) -> list[str]:
    return [_line(titles), "|---" + "|---:" * (len(titles) - 1) + "|"]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _ours(values: Sequence[float | None], column: Column) -> str:
    there = [value for value in values if value is not None]
    if not there:
        return column.missing if values else "–"
    text = f"{mean(there):,.{column.digits}f}"
    if len(there) > 1:
        text += f" ± {stdev(there):,.{column.digits}f}"
    return text if len(there) == len(values) else f"{text}, {len(there)} of {len(values)} seeds"


def _papers(cell: Mapping[str, Any], column: Column) -> str:
    if "paper" not in cell:
        return "–"
    return "not reached" if cell["paper"] is None else f"{cell['paper']:.{column.digits}f}"
