"""``polytempo advise``."""

import json
import math
import shlex
import time
from collections.abc import Mapping
from typing import Annotated, Any

import rich.box
import typer
from rich.console import Console
from rich.table import Table

from polytempo.cli.options import Json, Quiet, with_options
from polytempo.cli.progress import progress_bar
from polytempo.core.errors import UserError
from polytempo.learn.metrics import Scale
from polytempo.report.facts.numbers import NOTHING, counted
from polytempo.sim.experiment import Experiment, make_experiment
from polytempo.sim.run import run_experiment
from polytempo.sweeps.running import VALIDATION_SHARE
from polytempo.sweeps.tournament import CONTENDERS, PACEMAKER, Advice, Budget, Standing, hold_tournament

LENGTHS = ("updates", "target", "patience", "stop_at_target")
"""Settings that end runs elsewhere than at the same virtual time."""


@with_options(Experiment)
def advise(
    strategies: Annotated[
        list[str] | None, typer.Argument(help=f"who takes part (default {' '.join(CONTENDERS)})", show_default=False)
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.1, help="how long it may take")] = 10.0,
    seeds: Annotated[int, typer.Option(min=1, help="runs per strategy and round")] = 3,
    as_json: Json = False,
    quiet: Quiet = False,
    *,
    settings: dict[str, Any],
) -> None:
    """Which strategy for these data and devices? Rank some in a short tournament, by validation rows of the clients."""
    begun = time.monotonic()
    ending = [name for name in LENGTHS if name in settings]
    if ending:
        raise UserError(
            f"--{ending[0].replace('_', '-')} ends runs at different times. Give --time in its place: the longest that "
            "a run lasts."
        )
    base = make_experiment(**{"validation_share": VALIDATION_SHARE, **settings, "strategy": PACEMAKER})
    for name in strategies or ():
        make_experiment(**{**settings, "strategy": name})
    budget = Budget(60 * minutes, lambda: time.monotonic() - begun)
    with progress_bar(quiet) as bar:

        def make(experiment: Experiment) -> Any:
            return run_experiment(experiment, progress=bar.show)

        advice = hold_tournament(base, tuple(dict.fromkeys(strategies or CONTENDERS)), seeds, budget, make, bar.begin)
    command = _command(advice, settings)
    if as_json:
        print(json.dumps({**advice.figures(), "command": command}))
        return
    console = Console()
    console.print(_table(advice))
    for line in _remarks(advice):
        console.print(line, highlight=False)
    console.print(f"To go on: {command}", soft_wrap=True, highlight=False)


def _table(advice: Advice) -> Table:
    table = Table(box=rich.box.SIMPLE_HEAD)
    for title in ("strategy", f"validation {advice.scale.unit}", "95 % interval", "behind by", "last round"):
        table.add_column(title, justify="left" if title == "strategy" else "right")
    for one in advice.standings:
        table.add_row(*_cells(one, advice.scale), style="bold" if one is advice.best else None)
    return table


def _cells(one: Standing, scale: Scale) -> list[str]:
    if one.failure:
        return [one.strategy, "diverged", NOTHING, NOTHING, str(one.round)]
    return [
        one.strategy,
        scale.number(one.mean),
        _interval(one.interval, scale),
        _interval(one.behind, scale),
        str(one.round),
    ]


def _interval(interval: tuple[float, float], scale: Scale) -> str:
    low, high = interval
    return NOTHING if math.isnan(low) else f"{scale.number(low)} to {scale.number(high)}"


def _remarks(advice: Advice) -> list[str]:
    """What the ranking says, and what it does not."""
    lines = [
        f"{counted(advice.rounds, 'round')}; a run of the last one lasts {advice.length:,.0f} virtual seconds. "
        "Behind by: 95 % "
        "interval over seeds, against the first of the same round."
    ]
    if advice.not_worse:
        lines.append(f"Not shown to be worse than {advice.best.strategy}: {', '.join(advice.not_worse)}.")
    return lines


def _command(advice: Advice, settings: Mapping[str, Any]) -> str:
    """A run of the best, as the user would type it."""
    given = {**settings, "time": round(advice.length, 1)}
    words = [word for name, value in given.items() for word in _words(name, value)]
    return shlex.join(["polytempo", "run", advice.best.strategy, *words])


def _words(name: str, value: Any) -> list[str]:
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{option}" if value else f"--no-{option}"]
    return [f"--{option}", str(value)]
