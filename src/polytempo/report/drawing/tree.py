"""The cluster tree over virtual time: one band per cluster, as thick as it has clients, in the colours of their true
groups at that time; where a cluster splits, its clients flow into the bands of its parts."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path as Outline

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
from polytempo.report.facts.choosing import evenly
from polytempo.report.facts.courses import POINTS
from polytempo.report.facts.lineage import (
    NO_GROUP,
    ClusterLife,
    composition,
    described,
    group_changes,
    groups_at,
    lineage,
)
from polytempo.report.run import Run

# Inches: the vertical axis of the tree is one of inches, so that labels are known to fit.
EVERYBODY = 2.2  # a band with all clients
LINE = 0.165  # a line of text
LETTER = 0.056
MARGIN, AXIS = 0.12, 0.5
LABELLED = 60  # clusters at the end; with more, their labels would make the figure too long
EXPLAINED = 24  # splits with their figures; the others are in the run's splits
LEGENDARY = 12  # true groups in a legend


Extents = dict[int, tuple[float, float]]  # by true group, from top to bottom


@dataclass(frozen=True)
class _Band:
    """Where a cluster is drawn: its vertical extent, and in it that of each true group, from each time on. The first
    time is the cluster's beginning, the others are those at which its clients had other groups than before."""

    top: float
    bottom: float
    since: dict[float, Extents]

    def first(self) -> Extents:
        return next(iter(self.since.values()))

    def last(self) -> Extents:
        return next(reversed(self.since.values()))


def cluster_tree(run: Run, colour: str) -> Figure:
    """Who split from whom, when and why."""
    family = lineage(run)
    colours = group_colours(run, colour)
    groups = {number: groups_at(run, cluster.ended) for number, cluster in family.items()}
    leaves = _leaves(family, groups)
    extents, height = _extents(run.clients(), family, leaves)
    changes = group_changes(run)
    changed = {changes[i]: groups_at(run, changes[i]) for i in evenly(len(changes), POINTS)}
    bands = {}
    for number, cluster in family.items():
        over_time = {cluster.began: groups_at(run, cluster.began)}
        over_time |= {time: then for time, then in changed.items() if cluster.began < time < cluster.ended}
        over_time[cluster.ended] = groups[number]
        bands[number] = _band(*extents[number], _thickness(cluster, run.clients()), cluster.clients, over_time)
    labels = {n: described(n, family[n].clients, groups[n]) for n in leaves} if len(leaves) <= LABELLED else {}
    splits = sorted((c for c in family.values() if c.parts), key=lambda c: c.ended)
    notes = {cluster.number: _why(cluster) for cluster in splits[:EXPLAINED]}

    right = LETTER * max(map(len, [*labels.values(), *notes.values()]), default=0) + 2 * MARGIN
    width = 2 * column() - MARGIN - right
    end = max([float(run.virtual_time or 0.0), *(cluster.ended for cluster in family.values())]) or 1.0
    rows = label_rows([(family[n].ended / end * width, LETTER * len(note)) for n, note in notes.items()])
    above = LINE * (max(rows, default=-1) + 1.5)

    keys = keys_of_groups(colours)
    figure, axes = _axes(above + height, width, legend_height(keys), end)
    inch = end / width
    axes.set_ylim(height, -above)
    for number, cluster in family.items():
        _draw_band(axes, cluster, family, bands, groups[number], colours)
        _name_inside(axes, cluster, bands[number], colours, inch)
    for number, label in labels.items():
        _text(axes, end + 0.06 * inch, (bands[number].top + bands[number].bottom) / 2, label)
    for (number, note), row in zip(notes.items(), rows, strict=True):
        _explain(axes, family[number].ended, bands[number], -LINE * (row + 0.9), note, 0.05 * inch)
    if keys:
        legend_above(axes, keys)
    return figure


def keys_of_groups(colours: dict[int, str]) -> list[Patch]:
    """The keys of a legend of true groups; none where there are too many or none are known."""
    known = [group for group in colours if group != NO_GROUP]
    return [Patch(color=colours[group], label=f"group {group}") for group in known] if len(known) <= LEGENDARY else []


def _axes(height: float, width: float, legend: float, end: float) -> tuple[Figure, Axes]:
    """Axes of exactly this size in inches, with room for labels on the right and a legend above."""
    total = height + AXIS + legend
    figure = NotebookFigure(figsize=(2 * column(), total))
    axes = styled(figure.add_axes((MARGIN / (2 * column()), AXIS / total, width / (2 * column()), height / total)))
    axes.spines["left"].set_visible(False)
    axes.set_xlim(0, end)
    axes.set_yticks([])
    name_axes(axes, "virtual time (s)")
    return figure, axes


def _leaves(family: dict[int, ClusterLife], groups: dict[int, np.ndarray]) -> list[int]:
    """The clusters that did not split, from top to bottom: parts of one cluster stand together, and in the order of
    their true groups, so that few flows cross."""

    def below(number: int) -> Iterable[int]:
        cluster = family[number]
        if not cluster.parts:
            yield number
        for part in sorted(cluster.parts, key=lambda part: (_mean_group(family[part], groups[number]), part)):
            yield from below(part)

    parts = {part for cluster in family.values() for part in cluster.parts}
    return [leaf for number in family if number not in parts for leaf in below(number)]


def _mean_group(cluster: ClusterLife, groups: np.ndarray) -> float:
    return float(groups[cluster.newborn].mean()) if len(cluster.newborn) else 0.0


def _extents(
    clients: int, family: dict[int, ClusterLife], leaves: list[int]
) -> tuple[dict[int, tuple[float, float]], float]:
    """Top and bottom of every cluster's lane, and of the last one. A leaf's is at least a line of text high, that of a
    cluster that split spans its parts'."""
    lane = LINE if len(leaves) <= LABELLED else 0.0
    gap = min(0.06, 1.5 / len(leaves))
    extents: dict[int, tuple[float, float]] = {}
    end = 0.0
    for number in leaves:
        begin, end = end, end + max(_thickness(family[number], clients), lane) + gap
        extents[number] = (begin, end - gap)
    for number in sorted(family, reverse=True):  # parts have higher numbers than what they came from
        inside = [extents[part] for part in family[number].parts]
        if inside:
            extents[number] = (min(top for top, _ in inside), max(bottom for _, bottom in inside))
    return extents, end


def _thickness(cluster: ClusterLife, clients: int) -> float:
    return EVERYBODY * len(cluster.clients) / max(clients, 1)


def _band(
    top: float, bottom: float, thickness: float, clients: np.ndarray, over_time: dict[float, np.ndarray]
) -> _Band:
    """In the middle of its lane; ``over_time`` has everybody's true groups from each time on."""
    thickness = min(thickness, bottom - top)
    begin = (top + bottom - thickness) / 2
    since: dict[float, Extents] = {}
    for time, groups in over_time.items():
        at = begin
        extents: Extents = {}
        for group, count in composition(clients, groups).items():
            extents[group] = (at, at + thickness * count / len(clients))
            at = extents[group][1]
        if not since or extents != next(reversed(since.values())):
            since[time] = extents
    return _Band(begin, begin + thickness, since)


def _draw_band(
    axes: Axes,
    cluster: ClusterLife,
    family: dict[int, ClusterLife],
    bands: dict[int, _Band],
    groups: np.ndarray,
    colours: dict[int, str],
) -> None:
    """The cluster from its beginning to its end, then the flows of its clients into its parts, by true group."""
    band = bands[cluster.number]
    straight = cluster.began + (_bend(axes, cluster) if len(cluster.newborn) else 0.0)
    overlap = 0.002 * axes.get_xlim()[1]  # or a seam shows between a flow and its band
    times = [*(max(time, straight) - overlap for time in band.since), cluster.ended]
    rows = [*band.since.values(), band.last()]
    for group in sorted({group for extents in rows for group in extents}):
        tops, bottoms = np.array([extents.get(group, (band.top, band.top)) for extents in rows]).T
        axes.fill_between(times, tops, bottoms, color=colours[group], linewidth=0, step="post")
    each = (band.bottom - band.top) / max(len(cluster.clients), 1)
    at = {group: top for group, (top, _) in band.last().items()}
    for part in sorted(cluster.parts, key=lambda part: bands[part].top):
        child = family[part]
        for group, count in composition(child.newborn, groups).items():
            top, at[group] = at[group], at[group] + each * count
            arrived = bands[part].first()
            if group in arrived:  # all of them may have left the cluster since
                arrival = (child.began + _bend(axes, child), *arrived[group])
                _flow(axes, (cluster.ended, top, at[group]), arrival, colours[group])


def _bend(axes: Axes, cluster: ClusterLife) -> float:
    """How long the clients of a new cluster take, on paper, from the old band to the new one."""
    return min(0.03 * axes.get_xlim()[1], 0.5 * (cluster.ended - cluster.began))


def _flow(axes: Axes, start: tuple[float, float, float], end: tuple[float, float, float], colour: str) -> None:
    """A band from one vertical extent to another, each given as (time, top, bottom)."""
    (left, top, bottom), (right, last_top, last_bottom) = start, end
    middle = (left + right) / 2
    corners = [(left, top), (middle, top), (middle, last_top), (right, last_top), (right, last_bottom)]
    corners += [(middle, last_bottom), (middle, bottom), (left, bottom), (left, top)]
    line, curve = Outline.LINETO, Outline.CURVE4
    codes = [Outline.MOVETO, curve, curve, curve, line, curve, curve, curve, Outline.CLOSEPOLY]
    axes.add_patch(PathPatch(Outline(corners, codes), facecolor=colour, linewidth=0))


def _name_inside(axes: Axes, cluster: ClusterLife, band: _Band, colours: dict[int, str], inch: float) -> None:
    """The number and the size of a cluster that split, where its band has room for them."""
    size = f"{len(cluster.clients)} client{'' if len(cluster.clients) == 1 else 's'}"
    began = cluster.began + (_bend(axes, cluster) if len(cluster.newborn) else 0.0)
    room = (cluster.ended - began) / inch - 0.1
    fitting = [
        text for text in (f"cluster {cluster.number}: {size}", f"{cluster.number}") if LETTER * len(text) <= room
    ]
    if not cluster.parts or not fitting or band.bottom - band.top < LINE:
        return
    middle = (band.top + band.bottom) / 2
    behind = next(group for group, (_, bottom) in band.first().items() if middle <= bottom + 1e-9)
    _text(axes, began + 0.05 * inch, middle, fitting[0], ink_on(colours[behind]))


def label_rows(labels: list[tuple[float, float]]) -> list[int]:
    """The row above the tree for each label, given by place and length in inches from left to right: so high that no
    label covers another, nor the line that leads down from one."""
    rows: list[int] = []
    for place, length in reversed(labels):
        later = labels[len(labels) - len(rows) :]
        in_the_way = [row for row, (start, _) in zip(rows, later, strict=True) if start < place + length + 0.15]
        rows.insert(0, max(in_the_way, default=-1) + 1)
    return rows


def _why(split: ClusterLife) -> str:
    """``0 → 1–4: eigengap 0.31, decay 0.29``."""
    first, *_, last = split.parts
    parts = f"{first}, {last}" if last == first + 1 else f"{first}–{last}"
    figures = ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in split.why.items())
    return f"{split.number} → {parts}" + (f": {figures}" if figures else "")


def _explain(axes: Axes, time: float, band: _Band, at: float, note: str, offset: float) -> None:
    """The figures of a split above the tree, and a line from there, behind all other bands, through the split one."""
    for top, bottom, colour, layer in ((at, band.top, INK, 0.5), (band.top, band.bottom, "black", 3)):
        axes.plot([time, time], [top, bottom], color=colour, linewidth=0.7, linestyle=(0, (2, 2)), zorder=layer)
    _text(axes, time + offset, at, note)


def _text(axes: Axes, x: float, y: float, text: str, colour: str = INK) -> None:
    axes.text(x, y, text, ha="left", va="center", fontsize=SMALL, color=colour)
