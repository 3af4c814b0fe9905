"""``polytempo sweep``."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from polytempo.api import fit_for_a_path
from polytempo.cli.directories import continuable, new_directory
from polytempo.cli.options import AllowImport, Csv, Jobs, Json, Quiet, Set, check_form, experiment_named, with_options
from polytempo.cli.progress import runs_bar
from polytempo.sim.experiment import Experiment
from polytempo.sweeps.result import Sweep
from polytempo.sweeps.running import make_plan, run_sweep
from polytempo.sweeps.space import parse_grid, parse_ranges
from polytempo.sweeps.table import remarks, sweep_csv, sweep_table


@with_options(Experiment)
def sweep(
    experiment: Annotated[
        str, typer.Argument(help="a strategy's name, your own as file.py:Class, or an experiment.toml")
    ],
    grid: Annotated[
        list[str], typer.Option(metavar="NAME=VALUE,VALUE", help="a setting or parameter to vary; may be repeated")
    ] = [],  # noqa: B006
    range_: Annotated[
        list[str], typer.Option("--range", metavar="NAME=LOW:HIGH[:log]", help="for a search: numbers to draw from")
    ] = [],  # noqa: B006
    seeds: Annotated[int, typer.Option(help="runs per trial, with seeds SEED, SEED + 1, ...")] = 5,
    jobs: Jobs = 1,
    search: Annotated[str | None, typer.Option(metavar="optuna", help="search instead of trying the grid")] = None,
    trials: Annotated[int | None, typer.Option(help="trials of a search")] = None,
    heat_map: Annotated[
        Path | None, typer.Option(help="file of the figure, .png, .svg or .pdf (default OUT/heat-map.png)")
    ] = None,
    set_: Set = [],  # noqa: B006
    out: Annotated[Path | None, typer.Option(help="directory for the runs (default runs/TIME-sweep-NAME)")] = None,
    allow_import: AllowImport = [],  # noqa: B006
    as_json: Json = False,
    as_csv: Csv = False,
    quiet: Quiet = False,
    *,
    settings: dict[str, Any],
) -> None:
    """Try many settings with several seeds each, and choose the best by validation rows. Goes on where it was
    stopped."""
    from polytempo.report.drawing.canvas import check_ending  # here, because matplotlib takes a while to import

    check_form(as_json, as_csv)
    base = experiment_named(experiment, set_, settings, allow_import)
    plan = make_plan(base, parse_grid(grid), parse_ranges(range_), search, trials, seeds, jobs)
    out = out or new_directory(f"sweep-{fit_for_a_path(base.strategy)}")
    figure = heat_map or out / "heat-map.png"
    check_ending(figure)
    with runs_bar(quiet) as tell, continuable(f"--out {out}"):
        found = run_sweep(base, plan, out, tell)
    found.plot(figure)
    if not quiet:
        _show(found, Console(stderr=as_json or as_csv), table=not as_csv)
        Console(stderr=as_json or as_csv).print(f"Runs: {out}\nFigure: {figure}", soft_wrap=True, highlight=False)
    if as_json:
        print(json.dumps(found.figures()))
    if as_csv:
        print(sweep_csv(found), end="")


def _show(found: Sweep, console: Console, table: bool) -> None:
    """The table, unless it is printed in another form, and what was chosen."""
    if table:
        console.print(sweep_table(found, console.width))
    for remark in remarks(found):
        console.print(remark, highlight=False)
