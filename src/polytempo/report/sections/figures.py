"""The report's section of figures: how good, how soon, for whom and at what cost."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from polytempo.report.drawing import figures
from polytempo.report.drawing.idle import idle_shares
from polytempo.report.drawing.traffic import traffic_rate
from polytempo.report.facts.contenders import Contender, has_target
from polytempo.report.facts.runs import Runs
from polytempo.report.facts.scales import common_scale
from polytempo.report.facts.speed import idle_by_speed
from polytempo.report.facts.traffic import MINUTE, end_of, resolution_of, with_traffic
from polytempo.report.run import Run
from polytempo.report.sections.markup import Drawing, Section, SideBySide


class Plot(NamedTuple):
    """A figure of all runs: how it is drawn, its name, and how to read it."""

    draw: Callable[[Sequence[Run]], Figure]
    name: str
    caption: str

    def of(self, runs: Sequence[Run]) -> Drawing:
        return Drawing(self.name, partial(self.draw, runs), self.caption)


def section(runs: Runs) -> Section:
    """The figures that every comparison has, then those for which these runs have something to show."""
    plots = [*_courses(runs), *_per_client(runs), *_traffic(runs), *_waiting(runs), *_target(runs)]
    return Section("Figures", [SideBySide(tuple(plot.of(runs.all) for plot in plots))])


def _courses(runs: Runs) -> list[Plot]:
    band = " The band spans the seeds." if any(len(contender.runs) > 1 for contender in runs.contenders) else ""
    single = " Thin lines: the fifth of the clients with the slowest and the fastest devices."
    fifth = "" if len(runs.contenders) > 1 else single
    scale = common_scale(runs.all)
    name, moves = scale.name[0].upper() + scale.name[1:], "rises" if scale.higher_is_better else "falls"
    used = f"{name} of the models that clients use, against"
    time = f"{used} virtual time: the sooner a line {moves}, the less its clients wait.{band}{fifth}"
    updates = f"{used} updates: how much each update is worth, whatever time it took.{band}{fifth}"
    return [
        Plot(figures.accuracy_over_time, "accuracy-time", time),
        Plot(figures.accuracy_over_updates, "accuracy-updates", updates),
    ]


def _per_client(runs: Runs) -> list[Plot]:
    height = " Heights are scaled row by row." if len(runs.contenders) > 1 else ""
    name = common_scale(runs.all).name
    spread = f"Clients sorted by final {name}: the left end shows who is left behind, a flat line treats all alike."
    fifths = "Slow against fast devices: a gap between the two bars means that slow clients pay for being slow."
    staleness = f"How old the model was that an update came from: a long tail to the right means old news.{height}"
    return [
        Plot(figures.per_client_spread, "clients", spread),
        Plot(figures.fifths, "fifths", fifths),
        Plot(figures.staleness, "staleness", staleness),
    ]


def _traffic(runs: Runs) -> list[Plot]:
    so_far = "Traffic so far, summed over clients: compare the slopes, solid for up and dashed for down."
    plots = [Plot(figures.bytes_over_time, "traffic", so_far)]
    counted = with_traffic(runs.contenders)
    if counted:
        plots.append(Plot(traffic_rate, "traffic-rate", _traffic_caption(counted)))
    return plots


def _traffic_caption(contenders: Sequence[Contender]) -> str:
    resolution = resolution_of(max(end_of(contender.runs[0]) for contender in contenders))
    short = "" if resolution.seconds == MINUTE else " (minutes would be too few to see)"
    scale = " Heights are scaled row by row." if len(contenders) > 1 else ""
    seeds = " Of each method the first seed." if any(len(contender.runs) > 1 for contender in contenders) else ""
    return (
        f"Traffic over time in {resolution.unit}{short}, uploads above the line and downloads below it: a spike is "
        "many models at once, which the network must be built for, an even course is easy to carry. Triangles mark the "
        f"peaks, numbers say how high they are.{scale}{seeds}"
    )


def _waiting(runs: Runs) -> list[Plot]:
    if not any(np.any(idle_by_speed(contender) > 0) for contender in runs.contenders):
        return []
    whole = " The height of a strip is 100 %." if len(runs.contenders) > 1 else ""
    caption = (
        "The share of its time in which a client has nothing to do: bars that grow to the right are fast devices that "
        f"wait for slow ones.{whole}"
    )
    return [Plot(idle_shares, "idle", caption)]


def _target(runs: Runs) -> list[Plot]:
    if not any(map(has_target, runs.contenders)):
        return []
    caption = f"Virtual time until the mean {common_scale(runs.all).name} first reached the target: shorter is better."
    return [Plot(figures.time_to_target, "time-to-target", caption)]
