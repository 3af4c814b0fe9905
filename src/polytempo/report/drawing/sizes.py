"""The sizes of the clusters over virtual time, for methods whose clients move between clusters: one band per cluster,
in the colours of its clients' true groups, and above the bands a mark for each expansion and each merge."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from polytempo.report.drawing.canvas import (
    INK,
    SMALL,
    NotebookFigure,
    column,
    legend_above,
    legend_height,
    name_axes,
    styled,
)
from polytempo.report.drawing.colours import group_colours, ink_on
from polytempo.report.drawing.tree import AXIS, LABELLED, LETTER, LINE, MARGIN, keys_of_groups
from polytempo.report.facts.clusters import Memberships, memberships
from polytempo.report.facts.lineage import described, largest_group
from polytempo.report.facts.numbers import counted
from polytempo.report.run import Row, Run

# Inches
LEFT = 0.55  # for the numbers of clients
BANDS = 2.0  # at least
LANE = 0.14  # for the marks of one kind

MARKERS = {"merge": "v", "expansion": "^"}  # by kind, the lowest lane first


def cluster_sizes(run: Run, colour: str) -> Figure:
    """How many clients each cluster has over virtual time, and which clusters began and ended by regroupings."""
    courses, colours = memberships(run), group_colours(run, colour)
    at_end = np.unique(courses.cluster_of[-1]).tolist()
    named = at_end if len(at_end) <= LABELLED else []
    names = [described(cluster, courses.members(cluster, -1), courses.groups[-1]) for cluster in named]

    end = float(courses.times[-1]) or 1.0
    width = 2 * column() - LEFT - LETTER * max(map(len, names), default=0) - 2 * MARGIN
    height = max(BANDS, LINE * len(names))
    labels = _labels(run, LINE * end / width)
    longest = max(map(len, labels.values()), default=0)
    above = LANE * len(MARKERS) + LETTER * longest + MARGIN if labels else 0.0
    handles = [*keys_of_groups(colours), *_keys_of_marks(run)]
    total = AXIS + height + above + legend_height(handles, width)

    figure = NotebookFigure(figsize=(2 * column(), total))
    left, wide = LEFT / (2 * column()), width / (2 * column())
    axes = styled(figure.add_axes((left, AXIS / total, wide, height / total)))
    axes.set_xlim(0, end)
    axes.set_ylim(run.clients(), 0)
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    name_axes(axes, "virtual time (s)", "clients")
    middles = _draw_bands(axes, courses, colours, width / end, height / run.clients())
    places = _spread([middles[cluster] for cluster in named], run.clients() * LINE / height)
    for name, at in zip(names, places, strict=True):
        _text(axes, end * (1 + 0.06 / width), at, name)

    top = axes
    if labels:
        top = figure.add_axes((left, (AXIS + height) / total, wide, above / total), sharex=axes)
        top.set_ylim(0, above)
        top.axis("off")
        _draw_marks(top, run, labels)
    if handles:
        legend_above(top, handles, width)
    return figure


def _labels(run: Run, gap: float) -> dict[float, str]:
    """What the regroupings of each time were, for those at least a gap after the last one with a label."""
    labels: dict[float, str] = {}
    for time in sorted({float(row["time"]) for row in run.regroupings}):
        if not labels or time >= max(labels) + gap:
            labels[time] = _label([row for row in run.regroupings if row["time"] == time])
    return labels


def _label(rows: Sequence[Row]) -> str:
    """``0 → 3 (5 clients)``, or of several at a time how many they were."""
    if len(rows) == 1:
        return f"{rows[0]['source']} → {rows[0]['target']} ({counted(len(rows[0]['clients']), 'client')})"
    kinds = Counter(row["kind"] for row in rows)
    return ", ".join(counted(count, kind) for kind, count in sorted(kinds.items()))


def _keys_of_marks(run: Run) -> list[Line2D]:
    there = {row["kind"] for row in run.regroupings}
    return [
        Line2D([], [], linestyle="", marker=MARKERS[kind], markersize=5, color=INK, label=kind)
        for kind in ("expansion", "merge")
        if kind in there
    ]


def _draw_bands(
    axes: Axes, courses: Memberships, colours: dict[int, str], inches_per_second: float, inches_per_client: float
) -> dict[int, float]:
    """One band per cluster, in which its true groups lie side by side; the middle of each at the end."""
    times, base = courses.times, np.zeros(len(courses.times))
    middles = {}
    for cluster in np.unique(courses.cluster_of).tolist():
        there = np.flatnonzero(courses.sizes(cluster))
        drawn = slice(max(there[0] - 1, 0), there[-1] + 2)  # borders of nothing would add up to a thick line
        top = base
        for group in np.unique(courses.groups[courses.cluster_of == cluster]).tolist():
            bottom = base + np.sum((courses.cluster_of == cluster) & (courses.groups == group), axis=1)
            axes.fill_between(times[drawn], base[drawn], bottom[drawn], color=colours[group], linewidth=0, step="post")
            base = bottom
        axes.step(times[drawn], base[drawn], where="post", color=INK, linewidth=0.8)
        middles[cluster] = (top[-1] + base[-1]) / 2
        if top[-1] == base[-1]:
            _name_inside(axes, courses, cluster, top, colours, inches_per_second, inches_per_client)
    return middles


def _name_inside(
    axes: Axes,
    courses: Memberships,
    cluster: int,
    top: np.ndarray,
    colours: dict[int, str],
    inches_per_second: float,
    inches_per_client: float,
) -> None:
    """The number of a cluster that has nobody at the end, where its band was largest, if there is room."""
    text = f"{cluster}"
    sizes = courses.sizes(cluster)
    at = int(np.argmax(sizes))
    room = (courses.times[at + 1] - courses.times[at]) * inches_per_second
    if room < LETTER * len(text) + 0.05 or sizes[at] * inches_per_client < LINE:
        return
    behind = colours[largest_group(courses.members(cluster, at), courses.groups[at])]
    _text(axes, courses.times[at] + 0.03 / inches_per_second, top[at] + sizes[at] / 2, text, ink_on(behind))


def _draw_marks(axes: Axes, run: Run, labels: Mapping[float, str]) -> None:
    """A triangle per regrouping, each kind in its lane, under upright labels."""
    for lane, (kind, marker) in enumerate(MARKERS.items()):
        times = [row["time"] for row in run.regroupings if row["kind"] == kind]
        places = [LANE * (lane + 0.5)] * len(times)
        axes.plot(times, places, linestyle="", marker=marker, markersize=5, color=INK, clip_on=False)
    for time, label in labels.items():
        axes.text(time, LANE * len(MARKERS), label, rotation=90, ha="center", va="bottom", fontsize=SMALL, color=INK)


def _text(axes: Axes, x: float, y: float, text: str, colour: str = INK) -> None:
    axes.text(x, y, text, ha="left", va="center", fontsize=SMALL, color=colour)


def _spread(places: list[float], gap: float) -> list[float]:
    """Ordered places moved apart until each is at least the gap from the next, the last one not moved down."""
    spread = list(places)
    for i in range(1, len(spread)):
        spread[i] = max(spread[i], spread[i - 1] + gap)
    for i in range(len(spread) - 1, -1, -1):
        limit = places[-1] if i == len(spread) - 1 else spread[i + 1] - gap
        spread[i] = min(spread[i], limit)
    return spread
