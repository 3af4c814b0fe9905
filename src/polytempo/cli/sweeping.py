"""``polytempo sweep``."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from polytempo.api import fit_for_a_path
from polytempo.cli.directories import continuable, new_directory
from polytempo.cli.options import AllowImport, Jobs, Json, Quiet, Set, parse_assignments, with_options
from polytempo.cli.progress import runs_bar
from polytempo.core.registry import warn_of_unused
from polytempo.sim.experiment import Experiment, make_experiment, read_experiment
from polytempo.sweeps.running import make_plan, run_sweep
from polytempo.sweeps.space import parse_grid, parse_ranges
from polytempo.sweeps.table import remarks, sweep_table


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
    quiet: Quiet = False,
    *,
    settings: dict[str, Any],
) -> None:
    """Try many settings with several seeds each, and choose the best by validation rows. Goes on where it was
    stopped."""
    from polytempo.report.drawing.canvas import check_ending  # here, because matplotlib takes a while to import

    parameters = parse_assignments(set_)
    if experiment.endswith(".toml"):
        base = read_experiment(Path(experiment), parameters, settings, allow_import)
    else:
        warn_of_unused("the command line", (), allow_import)
        base = make_experiment(strategy=experiment, parameters=parameters, **settings)
    plan = make_plan(base, parse_grid(grid), parse_ranges(range_), search, trials, seeds, jobs)
    out = out or new_directory(f"sweep-{fit_for_a_path(base.strategy)}")
    figure = heat_map or out / "heat-map.png"
    check_ending(figure)
    with runs_bar(quiet) as tell, continuable(f"--out {out}"):
        found = run_sweep(base, plan, out, tell)
    found.plot(figure)
    if not quiet:
        console = Console(stderr=as_json)
        console.print(sweep_table(found))
        for remark in remarks(found):
            console.print(remark, highlight=False)
        console.print(f"Runs: {out}\nFigure: {figure}", soft_wrap=True, highlight=False)
    if as_json:
        print(json.dumps(found.figures()))
