"""What a benchmark leaves: every table as JSON, Markdown, a plot and a report."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from polytempo.papers.bench import Bench, Column, Table, rivals_of
from polytempo.papers.markdown import (
    both_figures,
    reconstructed_note,
    table_head,
    table_line,
    table_page,
    table_rows,
)
from polytempo.papers.measuring import Means, kept_runs, measure_table, measured
from polytempo.papers.promises import WorldFigures, promises
from polytempo.papers.records import PUBLISHED, Measured, Records
from polytempo.report.run import Run
from polytempo.sim.run import Progress

OVERVIEW = "overview.md"
RECORDS = "records.json"
PROMISES = "promises.md"


class Kept(NamedTuple):
    """How a benchmark is run, and where it leaves what it finds."""

    out: Path
    data_dir: Path | None = None
    publish: bool = False
    """Are its records added to those of the package?"""
    report: bool = True
    """Are curves drawn, and reports written?"""
    jobs: int = 1
    """Runs of a table that are made side by side, ..."""
    executor: str = "threads"
    """... and on which executor's machines."""

    def directory(self, bench: Bench) -> Path:
        return self.out / bench.name

    def means(self) -> Means:
        return Means(self.out / "runs", self.data_dir, self.jobs, self.executor)

    def records(self, bench: Bench) -> Records:
        """Those of the package and of earlier runs. Quick forms have none that last."""
        if not bench.recorded:
            return Records()
        published = PUBLISHED / f"{bench.name}.json"
        return Records(None, published) if self.publish else Records(published, self.directory(bench) / RECORDS)


def run_bench(
    bench: Bench, whole: Bench, kept: Kept, begin: Callable[[str], None], progress: Callable[[Progress], None]
) -> list[Path]:
    """Run what is neither recorded nor in ``out/runs`` and write each table, as soon as it is complete, to
    ``out/BENCH/TABLE`` as .json and .md and, from the runs in ``out/runs``, .svg and .html; the paths of the Markdown.
    Tables have all rows and seeds that are recorded. A benchmark with an overview has it in ``out/BENCH/overview.md``:
    of all tables of the whole that are there, whenever they were run. One that shows what Concerto promises has it in
    ``out/BENCH/promises.md``."""
    written, directory, means, records = [], kept.directory(bench), kept.means(), kept.records(bench)
    for table in bench.tables:
        measure_table(bench, table, records, means, begin, progress)
        shown, shown_table = (_shown(bench, whole), _of(whole, table)) if bench.recorded else (bench, table)
        figures = measured(shown_table, shown.all_seeds(), records)
        written.append(_write(shown, shown_table, figures, directory))
        if kept.report:
            _draw(bench, table, kept_runs(shown, shown_table, means), directory)
        if bench.overview is not None:
            (directory / OVERVIEW).write_text(_overview(bench, bench.overview, whole.tables, directory))
    if bench.overview is not None:
        written.append(directory / OVERVIEW)
    if bench.choosing_seed is not None:
        seeds = _shown(bench, whole).all_seeds()
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
    page.write_text(table_page(bench, table, rows))
    return page


def _draw(bench: Bench, table: Table, runs: Sequence[Run], directory: Path) -> None:
    from polytempo.report.drawing.canvas import save  # here, because matplotlib takes a while to import
    from polytempo.report.drawing.figures import accuracy_over_time
    from polytempo.report.page import write_report

    if runs:
        save(accuracy_over_time(runs), directory / f"{table.name}.svg")
        write_report(runs, directory / f"{table.name}.html", f"{bench.title}: {table.title}")


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
        " ".join(filter(None, (bench.notes, reconstructed_note(there)))),
        "",
        "Mean ± standard deviation over seeds. In brackets: the paper.",
    ]
    for block in dict.fromkeys(table.block for table in there):
        side_by_side = [table for table in there if table.block == block]
        labels = dict.fromkeys(label for table in side_by_side for label in cells[table.name])
        lines += ["", f"## {block}", "", *table_head(["method", *(table.heading for table in side_by_side)])]
        lines += [
            table_line([label, *(both_figures(cells[table.name].get(label), column) for table in side_by_side)])
            for label in labels
        ]
        lines.append(table_line(["seeds that count", *(str(_seeds_in(cells[table.name])) for table in side_by_side)]))
    return "\n".join(lines) + "\n"


def _seeds_in(cells: Mapping[str, Mapping[str, Any]]) -> int:
    return max(len(cell["ours"]) for cell in cells.values())
