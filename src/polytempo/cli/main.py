"""The command line."""

import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from polytempo import api
from polytempo.api import fit_for_a_path, simulate_experiment
from polytempo.cli.access import certs, codes, enrol, release, tokens
from polytempo.cli.advising import advise
from polytempo.cli.backups import backup, restore
from polytempo.cli.benching import bench
from polytempo.cli.claiming import claims
from polytempo.cli.conforming import conform
from polytempo.cli.devices import devices
from polytempo.cli.directories import continuable, new_directory
from polytempo.cli.erasing import erase
from polytempo.cli.exporting import export
from polytempo.cli.journals import replay, status
from polytempo.cli.listing import TABLES, print_listing
from polytempo.cli.moving import move
from polytempo.cli.options import (
    AllowImport,
    Callbacks,
    Csv,
    Jobs,
    Json,
    Quiet,
    Set,
    Track,
    check_form,
    experiment_named,
    parse_assignments,
    with_options,
)
from polytempo.cli.progress import progress_bar, runs_bar
from polytempo.cli.projects import new
from polytempo.cli.proxies import data_proxies
from polytempo.cli.serving import join, serve
from polytempo.cli.several import hand_over, settings
from polytempo.cli.sweeping import sweep
from polytempo.core.errors import StrategyError, UserError, exit_code
from polytempo.report.comparison import distinct, find_runs
from polytempo.report.csv_table import comparison_csv
from polytempo.report.facts.numbers import counted
from polytempo.report.run import Run
from polytempo.report.table import rich_table
from polytempo.serve.process.ending import StuckError, end_process
from polytempo.sim.experiment import Experiment
from polytempo.track.trackers import make_callbacks
from polytempo.world.data.download import get_dataset

app = typer.Typer(
    no_args_is_help=True,
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Asynchronous, personalised federated learning, simulated on a virtual clock or served to real clients.",
)
data_app = typer.Typer(no_args_is_help=True, help="Data sets.")
app.add_typer(data_app, name="data")

Out = Annotated[Path | None, typer.Option(help="directory of the run (default runs/TIME-NAME)")]


def main() -> None:
    """Entry point: an error on the user's side is one message on stderr and exit code 2, or 75 where trying again later
    may help."""
    warnings.showwarning = _note  # type: ignore[assignment]
    try:
        app()
    except (UserError, StrategyError) as error:
        print(f"polytempo: {error}", file=sys.stderr, flush=True)
        if isinstance(error, StuckError):
            end_process(error.code)
        sys.exit(exit_code(error))


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", help="show the version and exit", is_eager=True)] = False,
) -> None:
    if version:
        print(f"polytempo {metadata.version('polytempo')}")
        raise typer.Exit


@app.command()
@with_options(Experiment)
def run(
    strategy: Annotated[
        str, typer.Argument(help="a strategy's name, your own as file.py:Class, or an experiment.toml")
    ],
    set_: Set = [],  # noqa: B006
    out: Out = None,
    allow_import: AllowImport = [],  # noqa: B006
    callback: Callbacks = [],  # noqa: B006
    track: Track = [],  # noqa: B006
    as_json: Json = False,
    as_csv: Csv = False,
    quiet: Quiet = False,
    *,
    settings: dict[str, Any],
) -> None:
    """Simulate one strategy."""
    check_form(as_json, as_csv)
    experiment = experiment_named(strategy, set_, settings, allow_import)
    if experiment.defences() and not quiet:
        print(f"defences: {', '.join(experiment.defences())}", file=sys.stderr if as_json or as_csv else sys.stdout)
    out = out or new_directory(f"{fit_for_a_path(experiment.strategy)}-{fit_for_a_path(experiment.data)}")
    with progress_bar(quiet) as bar:
        bar.begin(experiment.strategy)
        with continuable(f"--out {out}"):
            done = simulate_experiment(experiment, out, bar.show, callbacks=make_callbacks(callback, track))
    _show([done], out / "report.html", quiet, as_json, as_csv)
    if as_json:
        print(json.dumps(dict(done.result)))


@app.command()
@with_options(Experiment)
def compare(
    strategies: Annotated[list[str], typer.Argument(help="names of strategies")],
    seeds: Annotated[int, typer.Option(min=1, help="runs per strategy, with seeds SEED, SEED + 1, ...")] = 3,
    jobs: Jobs = 1,
    set_: Set = [],  # noqa: B006
    out: Out = None,
    callback: Callbacks = [],  # noqa: B006
    track: Track = [],  # noqa: B006
    as_json: Json = False,
    as_csv: Csv = False,
    quiet: Quiet = False,
    *,
    settings: dict[str, Any],
) -> None:
    """Simulate several strategies under the same conditions and overlay them in one report. ``--set buffer_size=5``
    goes to every strategy that has such a parameter, ``--set fedbuff.buffer_size=5`` to one."""
    check_form(as_json, as_csv)
    out = out or new_directory("compare")
    with _compared_progress(quiet, jobs) as shown, continuable(f"--out {out}"):
        done = api.compare(
            strategies,
            seeds=seeds,
            out=out,
            jobs=jobs,
            **shown,
            callbacks=callback,
            track=track,
            parameters=parse_assignments(set_),
            **settings,
        )
    _show(done.runs, out / "report.html", quiet, as_json, as_csv)
    if as_json:
        print(json.dumps(done.figures()))


app.command()(sweep)
app.command()(advise)


@app.command()
def report(
    directories: Annotated[list[Path], typer.Argument(help="run directories, or directories that hold some")],
    out: Annotated[Path, typer.Option(help="the HTML file to write")] = Path("report.html"),
    graph_at: Annotated[
        list[float], typer.Option(help="a virtual time (s) at which to show who learns from whom; may be repeated")
    ] = [],  # noqa: B006
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="also save every figure as a file of its own in this directory")
    ] = None,
    form: Annotated[str, typer.Option("--format", help="of these files: pdf, svg or png")] = "pdf",
    width: Annotated[
        str, typer.Option(help="of these files: single (a column of a paper, 3.5 in) or double (7.16 in)")
    ] = "single",
    as_csv: Csv = False,
) -> None:
    """Overlay runs that are there in one report."""
    from polytempo.report.figures import save_figures
    from polytempo.report.page import write_report  # here, because matplotlib takes a while to import

    runs: list[Run] = []
    for directory in directories:
        found = find_runs(directory)
        runs += map(Run.load, found)
        if not found:
            print(f"polytempo: {directory} holds no finished run and is left out.", file=sys.stderr)
    runs = distinct(runs)
    if not runs:
        raise UserError("No finished run was found. Expected directories that polytempo run or compare wrote.")
    saved = [] if figures is None else save_figures(runs, figures, form, width, graph_at)
    _show(runs, write_report(runs, out, "Runs", graph_at), quiet=False, as_csv=as_csv)
    if saved:
        Console().print(f"{counted(len(saved), 'figure')} saved in {figures}", soft_wrap=True)


@app.command("list")
def list_(what: Annotated[str, typer.Argument(help=", ".join(TABLES))], as_csv: Csv = False) -> None:
    """List the strategies, data sets, models, partitions or devices there are."""
    print_listing(what, as_csv)


app.command()(bench)
app.command()(claims)
app.command()(new)

SERVICE = (serve, join, status, replay, devices, export, certs, tokens, codes, enrol, release)
KEEPING = (settings, hand_over, backup, restore, move, erase)
for command in (*SERVICE, *KEEPING):
    app.command()(command)
# What follows the program's name belongs to the program.
app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(conform)


@data_app.command("get")
def data_get(
    name: Annotated[str, typer.Argument(help="name of a data set")],
    mirror: Annotated[str | None, typer.Option(help="where to download from (default $POLYTEMPO_MIRROR)")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="where to put it")] = None,
) -> None:
    """Download a data set from a mirror and check it."""
    print(get_dataset(name, data_dir, mirror))


data_app.command("proxies")(data_proxies)


@contextmanager
def _compared_progress(quiet: bool, jobs: int) -> Iterator[dict[str, Any]]:
    """What a comparison tells of its progress, and to whom."""
    if jobs > 1:
        with runs_bar(quiet) as tell:
            yield {"finished": tell, "progress": False}
    else:
        with progress_bar(quiet) as bar:
            yield {"begin": bar.begin, "progress": bar.show}


def _note(message: Warning | str, *_: object) -> None:
    print(f"polytempo: note: {message}", file=sys.stderr)


def _show(runs: Sequence[Run], page: Path, quiet: bool, as_json: bool = False, as_csv: bool = False) -> None:
    """The table and where the report is, with --json on stderr; with --csv the table alone on stdout."""
    if not quiet:
        console = Console(stderr=as_json or as_csv)
        if not as_csv:
            console.print(rich_table(runs))
        console.print(f"Report: {page}", soft_wrap=True)
    if as_csv:
        print(comparison_csv(runs), end="")
