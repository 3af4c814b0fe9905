"""``polytempo bench``."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console

from polytempo.cli.directories import continuable
from polytempo.cli.listing import print_listing
from polytempo.cli.options import Csv, Jobs, Quiet
from polytempo.cli.progress import progress_bar
from polytempo.core.errors import UserError
from polytempo.papers import Bench, benches, part_of, quick_form, run_bench
from polytempo.papers.checking import check, sample_of
from polytempo.papers.measuring import Means
from polytempo.papers.tables import Kept
from polytempo.report.csv_table import bench_csv


def bench(
    name: Annotated[str, typer.Argument(help="name of a benchmark, or list")],
    quick: Annotated[bool, typer.Option("--quick", help="the first tables, on digits, in a few minutes")] = False,
    only: Annotated[list[str], typer.Option(help="run only this table; may be repeated")] = [],  # noqa: B006
    row: Annotated[list[str], typer.Option(help="run only this row, by its label; may be repeated")] = [],  # noqa: B006
    seeds: Annotated[int | None, typer.Option(min=1, help="runs per row")] = None,
    check_records: Annotated[
        bool, typer.Option("--check", help="make some recorded runs again and compare; nothing is written")
    ] = False,
    publish: Annotated[
        bool, typer.Option("--publish", help="add the records to those of the package, in a checkout of it")
    ] = False,
    report: Annotated[bool, typer.Option(help="draw the curves of the runs, and write a report of them")] = True,
    data_dir: Annotated[Path | None, typer.Option(help="where data sets lie")] = None,
    jobs: Jobs = 1,
    executor: Annotated[str, typer.Option(help="where runs are computed: threads, ray or ray:ADDRESS")] = "threads",
    out: Annotated[Path, typer.Option(help="directory for the results")] = Path("results"),
    as_csv: Csv = False,
    quiet: Quiet = False,
) -> None:
    """Run what a paper shows as an experiment: our figures beside the paper's. Goes on where it was interrupted."""
    if name == "list":
        print_listing("benches", as_csv)
        return
    chosen = part_of(benches[name], only, row)
    chosen = replace(quick_form(chosen) if quick else chosen, seeds=seeds or chosen.seeds)
    kept = Kept(out, data_dir, publish, report, jobs, executor)
    if check_records:
        _check(chosen, kept, quiet)
        return
    with progress_bar(quiet) as bar, continuable(f"--out {out}"):
        written = run_bench(chosen, benches[name], kept, bar.begin, bar.show)
    if as_csv:
        data = [path for table in written if (path := table.with_suffix(".json")).exists()]
        print("\n".join(bench_csv(json.loads(path.read_text())) for path in data), end="")
    else:
        print(*(f"{table.read_text()}\n" for table in written), sep="", end="")
    Console(stderr=as_csv).print(f"Written to {kept.directory(chosen)}", soft_wrap=True)


def _check(chosen: Bench, kept: Kept, quiet: bool) -> None:
    """Make some of the recorded runs again; an error where one of them is not as recorded."""
    records = kept.records(chosen)
    sample = sample_of(chosen, records, Random())
    if not sample:
        raise UserError(f"{chosen.name} has no records of these rows and seeds. Run it without --check first.")
    wrong: Sequence[str] = []
    for sampled in sample:
        with TemporaryDirectory() as directory, progress_bar(quiet) as bar:
            bar.begin(f"{sampled.table.name}: {sampled.case.label}, seed {sampled.record.seed}")
            found = check(sampled, records, Means(Path(directory) / "runs", kept.data_dir), bar.show)
        print(found.line(), flush=True)
        wrong = [*wrong, *found.beyond]
    if wrong:
        raise UserError(
            f"{len(wrong)} figures of {len(sample)} runs are not as recorded. If that is meant, count the revision of "
            "the method or of the engine up, and record the runs again."
        )
