"""Who arrived when, and who had to wait: the timeline of arrival groups, and the idle share of every client."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from polytempo.report.drawing.canvas import (
    INK,
    SMALL,
    canvas,
    column,
    legend_above,
)
from polytempo.report.drawing.colours import ink_on
from polytempo.report.drawing.timeline import MARKERS, draw_bars, drawn_until, name_clients
from polytempo.report.facts.arrivals import ArrivedGroup
from polytempo.report.facts.contenders import COLOURS
from polytempo.report.facts.speed import slowest_to_fastest
from polytempo.report.run import Run

ROWS = 20  # clients in the timeline of arrival groups
PER_ROW = 16  # bars in a row, so that the steps written on them stay readable
FIRST = "#c8cdd4"
NEUTRAL = "#8a8f98"  # for any group in the legend
STEPS_SIZE = 6.5  # points
NUMBERS = -1.0  # the row of the groups' numbers, over the clients
HEIGHT = 0.6  # of a bar, in rows
FLAG: dict[str, Any] = {"linestyle": "", "marker": "v", "markersize": 5, "color": INK}
LOST: dict[str, Any] = {"linestyle": "", "marker": MARKERS["left"], "markersize": 6, "markeredgewidth": 1.8}
TOO_LATE: dict[str, Any] = {"facecolor": "none", "edgecolor": INK, "hatch": "////"}

Line = tuple[float, float, float, float]  # from x, y to x, y


class _Bar(NamedTuple):
    row: int
    began: float
    arrived: float
    steps: int
    colour: str
    group: ArrivedGroup | None

    def in_time(self) -> float:
        """The end of what lies before the latest time."""
        return self.arrived if self.group is None else min(self.arrived, self.group.latest)


class _Loss(NamedTuple):
    row: int
    time: float
    colour: str


def arrival_timeline(run: Run, colour: str) -> Figure:
    """The updates of at most 20 clients, from the slowest to the fastest, in the colours of their arrival groups, with
    their steps, when they were expected, and what was lost; from the start as far as the steps can be read."""
    chosen = slowest_to_fastest(run, ROWS)
    groups = run.arrival_groups()
    colours = _colours(groups, colour)
    row_of = {int(client): row for row, client in enumerate(chosen)}
    bars, losses = _bars(run, groups, row_of, colours), _losses(run, row_of, colours)
    end = max([float(run.virtual_time or 0.0), *(bar.arrived for bar in bars)])
    times = [*(bar.began for bar in bars), *(loss.time for loss in losses)]
    until = drawn_until(np.array(times), end, PER_ROW * len(chosen))
    bars = [bar for bar in bars if bar.began < until]
    losses = [loss for loss in losses if loss.time <= until]
    late = [bar for bar in bars if bar.arrived > bar.in_time()]

    figure, axes = canvas(height=1.2 + 0.23 * max(len(chosen), 3), width=2 * column())
    for one in dict.fromkeys(bar.colour for bar in bars):
        same = [bar for bar in bars if bar.colour == one]
        ends = [min(bar.arrived, until) for bar in same]
        draw_bars(axes, [bar.began for bar in same], ends, [bar.row for bar in same], HEIGHT, color=one)
    _draw_expectations(axes, bars)
    _draw_late(axes, late)
    _draw_losses(axes, losses)
    _write_steps(axes, bars, until)
    _write_numbers(axes, groups, until, colours)
    legend_above(axes, _keys(any(bar.group is None for bar in bars), bool(late), bool(losses)), 2 * column())
    name_clients(axes, chosen, until, end)
    axes.set_yticks([NUMBERS, *row_of.values()], ["group", *map(str, row_of)], fontsize=SMALL)
    axes.set_ylim(len(chosen) - 0.3, NUMBERS - 0.6)
    return figure


def _colours(groups: Sequence[ArrivedGroup], first: str) -> dict[int, str]:
    """A colour for each group by number: the one that nobody has had for longest, so that groups that are open at the
    same time can be told apart."""
    over_at = dict.fromkeys((first, *COLOURS), -np.inf)
    colours = {}
    for group in groups:
        colours[group.number] = colour = min(over_at, key=over_at.__getitem__)
        over_at[colour] = max([group.latest, *(member.arrived for member in group.arrivals)])
    return colours


def _bars(run: Run, groups: Sequence[ArrivedGroup], row_of: dict[int, int], colours: dict[int, str]) -> list[_Bar]:
    first = [
        _Bar(row_of[update["client"]], update["began"], update["time"], update["steps"], FIRST, None)
        for update in run.update_log
        if update.get("arrival_group") is None and update["client"] in row_of
    ]
    planned = [
        _Bar(row_of[member.client], member.began, member.arrived, member.steps, colours[group.number], group)
        for group in groups
        for member in group.arrivals
        if member.client in row_of
    ]
    return first + planned


def _losses(run: Run, row_of: dict[int, int], colours: dict[int, str]) -> list[_Loss]:
    return [
        _Loss(row_of[mark["client"]], mark["time"], colours[mark["arrival_group"]] if "arrival_group" in mark else INK)
        for mark in run.marks
        if mark["kind"] == "left" and mark["client"] in row_of
    ]


def _draw_expectations(axes: Axes, bars: Sequence[_Bar]) -> None:
    """A tick where a bar was expected to end and, under the bar, a whisker from there to the latest time. The tick does
    not cross the bar: the end of a bar in two pieces looks late when it is not."""
    whiskers: dict[str, list[Line]] = {}
    ticks: list[Line] = []
    for bar in bars:
        if bar.group is not None:
            expected, latest = bar.group.expected, bar.group.latest
            whiskers.setdefault(bar.colour, []).append((expected, bar.row + 0.42, latest, bar.row + 0.42))
            ticks.append((expected, bar.row + 0.12, expected, bar.row + 0.47))
    for colour, lines in whiskers.items():
        _lines(axes, lines, colour, 1.5)
    _lines(axes, ticks, INK, 0.9)


def _lines(axes: Axes, lines: Sequence[Line], colour: str, width: float) -> None:
    """Straight lines, all as one path."""
    if lines:
        points = np.array([[(x0, y0), (x1, y1), (np.nan, np.nan)] for x0, y0, x1, y1 in lines]).reshape(-1, 2)
        axes.plot(*points.T, color=colour, linewidth=width, solid_capstyle="butt")


def _draw_late(axes: Axes, late: Sequence[_Bar]) -> None:
    """What lies behind the latest time is hatched, and a flag stands where the bar ends."""
    since, arrived = [bar.in_time() for bar in late], [bar.arrived for bar in late]
    draw_bars(axes, since, arrived, [bar.row for bar in late], HEIGHT, **TOO_LATE)
    axes.plot(arrived, [bar.row - 0.38 for bar in late], **FLAG)


def _draw_losses(axes: Axes, losses: Sequence[_Loss]) -> None:
    for colour in dict.fromkeys(loss.colour for loss in losses):
        same = [loss for loss in losses if loss.colour == colour]
        axes.plot([loss.time for loss in same], [loss.row for loss in same], color=colour, **LOST)


def _write_steps(axes: Axes, bars: Sequence[_Bar], until: float) -> None:
    """The number of steps on each bar that is long enough for it."""
    points_per_second = 0.93 * 2 * column() * 72 / max(until, 1e-9)
    for bar in bars:
        end = min(bar.in_time(), until)
        if (end - bar.began) * points_per_second < 0.65 * STEPS_SIZE * len(str(bar.steps)) + 3:
            continue
        text = axes.text((bar.began + end) / 2, bar.row, str(bar.steps), ha="center", va="center_baseline")
        text.set(fontsize=STEPS_SIZE, color=ink_on(bar.colour))


def _write_numbers(axes: Axes, groups: Sequence[ArrivedGroup], until: float, colours: dict[int, str]) -> None:
    """The groups' numbers over the rows, each where its group was expected, as many as find room."""
    free_from = 0.0
    for group in sorted(groups, key=lambda group: group.expected):
        room = until * (0.007 + 0.007 * len(str(group.number)))
        if group.expected - room / 2 < free_from or group.expected + room / 2 > until:
            continue
        free_from = group.expected + room / 2
        colour = colours[group.number]
        text = axes.text(group.expected, NUMBERS, str(group.number), ha="center", va="center_baseline")
        text.set(fontsize=SMALL, color=ink_on(colour), bbox={"facecolor": colour, "edgecolor": "none", "pad": 1.5})


def _keys(first: bool, late: bool, lost: bool) -> list[Artist]:
    tick = Line2D([], [], linestyle="", marker="|", markersize=9, color=INK, label="expected arrival")
    whisker = Line2D([], [], color=NEUTRAL, linewidth=1.5, label="from expected to latest")
    keys: list[Artist] = [tick, whisker]
    if first:
        keys.insert(0, Patch(color=FIRST, label="first round, no group yet"))
    if late:
        keys.append(Patch(label="after the latest", linewidth=0, **(TOO_LATE | {"facecolor": NEUTRAL})))
        keys.append(Line2D([], [], label="late arrival", **FLAG))
    if lost:
        keys.append(Line2D([], [], label="lost", color=NEUTRAL, **LOST))
    return keys
