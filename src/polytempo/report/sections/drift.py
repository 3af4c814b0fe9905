"""The report's section on drift: the clients by cluster, before their data changed and after."""

from collections.abc import Sequence
from functools import partial

from polytempo.report.drawing.drift import before_and_after
from polytempo.report.facts.projection import FEW, SHOWN, Projection, drifts, projections
from polytempo.report.facts.runs import Runs
from polytempo.report.run import Run
from polytempo.report.sections.markup import Drawing, Piece, Section, run_heading


def section(runs: Runs) -> Section:
    """For contenders that have clusters in a world that drifts, the clients of the first such seed before and after
    drifts."""
    pieces: list[Piece] = []
    for contender, run in runs.first_with(lambda run: run.has_clusters() and projections(run)):
        found = projections(run)
        draw, name = partial(before_and_after, found), runs.named("drift", contender)
        pieces += [run_heading(contender, run), Drawing(name, draw, _caption(run, found), wide=True)]
    return Section("Clients before and after a drift", pieces)


def _caption(run: Run, found: Sequence[Projection]) -> str:
    times = len(drifts(run))
    caption = (
        "The clients’ own models, right after their last local training, in the plane in which those of both panels "
        "differ most: near each other are models that are alike. Colours are clusters"
    )
    if run.per_client("per_client_group", -1).size:
        caption += ", shapes true groups"
    caption += "; a ring marks a client whose data changed. "
    if times > FEW:
        caption += f"Data changed at {times:,} times: left before the first of them, right at the end of the run."
    else:
        caption += "Left the last evaluation before the drift, right the last one before the next drift or the end."
        if times > SHOWN:
            caption += f" {len(found)} of {times} drifts are shown."
    followed = len({int(client) for row in run.sketch_log for client in row["clients"]})
    if followed < run.clients():
        caption += f" Shown are {followed:,} of {run.clients():,} clients."
    return caption + " Distances are estimated from sketches of the models, to about an eighth."
