"""The report's section on who trained when: a timeline per contender."""

from functools import partial

from polytempo.report.drawing.timeline import timeline
from polytempo.report.facts.runs import MOST, Runs
from polytempo.report.run import Run
from polytempo.report.sections.markup import Drawing, Section

CAPTION = (
    "one row per client, one bar per update from dispatch to arrival, in alternating shades; gaps are waiting, "
    "or training that the end of the run cut off."
)


def section(runs: Runs) -> Section:
    """The timeline of each contender's first seed."""
    drawn = [
        Drawing(
            runs.named("timeline", contender),
            partial(timeline, contender.runs[0], contender.colour),
            f"{contender.label}, seed {contender.runs[0].seed}: {CAPTION}{_more(contender.runs[0])}",
            wide=True,
        )
        for contender in runs.contenders[:MOST]
        if contender.runs[0].update_log
    ]
    return Section("Who trained when", drawn)


def _more(run: Run) -> str:
    """What else a timeline shows."""
    held = " Thin and light is the time in which a client holds its model, before it trains it."
    asked = any("asked" in row for row in run.update_log)
    return (held if asked else "") + (_broadcasts(run) if run.refreshes else "")


def _broadcasts(run: Run) -> str:
    return (
        " A triangle is a refresh, a model sent to a client in training; a thin line joins those that were sent "
        "together (a broadcast), and a triangle on its own reached one client only, of those shown. "
        f"Broadcasts in the whole run: {run.multicasts:,}; refreshes: {run.refreshes:,}."
    )
