"""What a benchmark leaves: every table as JSON, Markdown, a plot and a report."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from polytempo.papers.bench import Bench, Case, Column, Table, rivals_of
from polytempo.papers.measuring import Means, kept_runs, measure_table, measured
from polytempo.papers.promises import WorldFigures, promises
from polytempo.papers.records import PUBLISHED, Figures, Measured, Records
from polytempo.report.run import Run
from polytempo.sim.run import Progress
from polytempo.strategies import RECONSTRUCTED, is_reconstructed

OVERVIEW = "overview.md"
RECORDS = "records.json"
PROMISES = "promises.md"


def run_bench(
    bench: Bench,
    whole: Bench,
    out: Path,
    data_dir: Path | None,
    begin: Callable[[str], None],
    progress: Callable[[Progress], None],
    jobs: int = 1,
    executor: str = "threads",
) -> list[Path]:
    """Run what is neither recorded nor in ``out/runs`` and write each table, as soon as it is complete, to
    ``out/BENCH/TABLE`` as .json, .md, .svg and .html; the paths of the Markdown. A recorded benchmark has its records
    in ``out/BENCH/records.json``, and its tables have all rows and seeds that are recorded. A benchmark with an
    overview has it in ``out/BENCH/overview.md``: of all tables of the whole that are there, whenever they were run. One
    that shows what Concerto promises has it in ``out/BENCH/promises.md``. ``jobs`` runs of a table go on at once."""
    written, directory, means = [], out / bench.name, Means(out / "runs", data_dir, jobs, executor)
    for table in bench.tables:
        records = Records(PUBLISHED / f"{bench.name}.json", directory / RECORDS) if bench.recorded else Records()
        measure_table(bench, table, records, means, begin, progress)
        shown, shown_table = (_shown(bench, whole), _of(whole, table)) if bench.recorded else (bench, table)
        figures = measured(shown_table, shown.all_seeds(), records)
        written.append(_write(shown, shown_table, figures, directory))
        _draw(bench, table, kept_runs(shown, shown_table, means), directory)
        if bench.overview is not None:
            (directory / OVERVIEW).write_text(_overview(bench, bench.overview, whole.tables, directory))
    if bench.overview is not None:
        written.append(directory / OVERVIEW)
    if bench.choosing_seed is not None:
        seeds, records = (
            _shown(bench, whole).all_seeds(),
            Records(PUBLISHED / f"{bench.name}.json", directory / RECORDS),
        )
        worlds = [
            WorldFigures(
                table.title,
                measured(table, seeds, records),
                measured(rivals_of(table), [bench.choosing_seed], records),
            )
            for table in whole.tables
        ]
        (directory / PROMISES).write_text(promises(worlds))
        written.append(directory / PROMISES)
    return written


def _shown(bench: Bench, whole: Bench) -> Bench:
    """With the seeds of the whole, or more if more were asked for."""
    return replace(whole, seeds=max(bench.seeds, whole.seeds))


def _of(whole: Bench, part: Table) -> Table:
    return next(table for table in whole.tables if table.name == part.name)


def _write(bench: Bench, table: Table, figures: Measured, directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    rows = table_rows(table, figures)
    page = directory / f"{table.name}.md"
    page.with_suffix(".json").write_text(
        json.dumps({"bench": bench.name, "table": table.name, "settings": dict(table.settings), "rows": rows}, indent=1)
    )
    page.write_text(_markdown(bench, table, rows))
    return page


def _draw(bench: Bench, table: Table, runs: Sequence[Run], directory: Path) -> None:
    from polytempo.report.drawing.canvas import save  # here, because matplotlib takes a while to import
    from polytempo.report.drawing.figures import accuracy_over_time
    from polytempo.report.page import write_report

    if runs:
        save(accuracy_over_time(runs), directory / f"{table.name}.svg")
        write_report(runs, directory / f"{table.name}.html", f"{bench.title}: {table.title}")


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


def _markdown(bench: Bench, table: Table, rows: Sequence[Mapping[str, Any]]) -> str:
    published = [column for column in table.columns if any("paper" in row[column.title] for row in rows)]
    titles = ["method"]
    for column in table.columns:
        titles += [column.title, f"{column.title}, paper"] if column in published else [column.title]
    lines = [
        f"# {bench.title}: {table.title}",
        "",
        " ".join(filter(None, (bench.notes, table.notes, _reconstructed([table])))),
        "",
        " ".join(filter(None, (_seeds(bench), _target(table)))),
        "",
        *_head(titles),
    ]
    for row in rows:
        cells = [row["label"] + _fewer(bench, row)]
        for column in table.columns:
            cells.append(_ours(row[column.title]["ours"], column))
            if column in published:
                cells.append(_papers(row[column.title], column))
        lines.append(_line(cells))
    return "\n".join(lines) + "\n"


def _reconstructed(tables: Sequence[Table]) -> str:
    """What to say of tables that have rows of reconstructed methods."""
    strategies = {{**table.settings, **case.settings}["strategy"] for table in tables for case in table.cases}
    return RECONSTRUCTED if any(map(is_reconstructed, strategies)) else ""


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
        " ".join(filter(None, (bench.notes, _reconstructed(there)))),
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


def _fewer(bench: Bench, row: Mapping[str, Any]) -> str:
    return "" if len(row["seeds"]) == bench.seeds else f" ({len(row['seeds'])} of {bench.seeds} seeds)"


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
