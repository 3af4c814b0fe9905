"""The clients before and after a drift, in the plane in which their models differ most."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

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
from polytempo.report.facts.lineage import NO_GROUP
from polytempo.report.facts.numbers import amount
from polytempo.report.facts.projection import Panel, Projection

# Paul Tol's bright colours, safe for the colour-blind, with a few more; mostly others than those of the true groups.
CLUSTER_COLOURS = (
    *("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377"),
    *("#ee7733", "#332288", "#99ddaa", "#774411"),
)
OTHERS = "#bbbbbb"  # smaller clusters
MARKERS = "os^DvPX*"  # by true group

# Inches
PANEL_HEIGHT = 3.1
BESIDE, BELOW, OVER = 0.35, 0.32, 0.25  # the names of the axes, and the time over a panel


def before_and_after(found: Sequence[Projection]) -> Figure:
    """Two panels per drift, the clients before and after it: colours are clusters, shapes true groups, rings mark those
    whose data changed."""
    panels = [panel for projection in found for panel in (projection.before, projection.after)]
    colours = _cluster_colours(np.concatenate([panel.clusters for panel in panels]))
    markers = _group_markers(np.unique(np.concatenate([panel.groups for panel in panels])).tolist())
    handles = _keys(colours, markers)
    each = OVER + PANEL_HEIGHT + BELOW
    height, wide = legend_height(handles, 2 * column()) + each * len(found), _panel_width()
    figure = NotebookFigure(figsize=(2 * column(), height))
    for line, projection in enumerate(found):
        before, after = projection.before, projection.after
        titles = (
            f"before the drift at {amount(projection.drift)} s: the evaluation at {amount(before.time)} s",
            f"after it: the evaluation at {amount(after.time)} s",
        )
        bottom = BELOW + each * (len(found) - 1 - line)
        for place, (panel, title) in enumerate(zip((before, after), titles, strict=True)):
            left = BESIDE + place * (BESIDE + wide)
            corners = np.array((left, bottom, wide, PANEL_HEIGHT)) / (2 * column(), height, 2 * column(), height)
            axes = styled(figure.add_axes(tuple(corners)))
            _draw(axes, panel, projection, colours, markers)
            axes.set_title(title, loc="left", fontsize=SMALL + 0.5, color=INK, pad=4)
    over_all = figure.add_axes((BESIDE / (2 * column()), each * len(found) / height, 1 - BESIDE / column(), 1e-3))
    over_all.axis("off")
    legend_above(over_all, handles, 2 * column())
    return figure


def _panel_width() -> float:
    return column() - BESIDE - 0.1


def _draw(axes: Axes, panel: Panel, projection: Projection, colours: dict[int, str], markers: dict[int, str]) -> None:
    """One panel. Both of a drift have the same scale, and the same one in both directions: a distance is a distance."""
    for cluster, group in sorted(set(zip(panel.clusters.tolist(), panel.groups.tolist(), strict=True))):
        these = panel.places[(panel.clusters == cluster) & (panel.groups == group)]
        colour, marker = colours[cluster], markers[group]
        axes.plot(*these.T, linestyle="", color=colour, marker=marker, markersize=4.5, markeredgewidth=0, alpha=0.85)
    ringed = panel.places[np.isin(panel.clients, projection.drifted)]
    axes.plot(*ringed.T, linestyle="", **_RING)
    everywhere = np.concatenate([projection.before.places, projection.after.places])
    middle = (everywhere.max(axis=0) + everywhere.min(axis=0)) / 2
    reach = np.abs(everywhere - middle).max(axis=0) / (_panel_width(), PANEL_HEIGHT)
    half = 1.1 * (reach.max() or 1.0) * np.array((_panel_width(), PANEL_HEIGHT))
    axes.set_xlim(middle[0] - half[0], middle[0] + half[0])
    axes.set_ylim(middle[1] - half[1], middle[1] + half[1])
    axes.tick_params(labelbottom=False, labelleft=False)
    first, second = projection.variance
    name_axes(axes, f"first component ({first:.0%} of the variance)", f"second component ({second:.0%})")


_RING: dict[str, Any] = {
    "marker": "o",
    "markersize": 7.5,
    "markerfacecolor": "none",
    "markeredgecolor": INK,
    "markeredgewidth": 0.7,
}


def _cluster_colours(clusters: np.ndarray) -> dict[int, str]:
    """A colour for each of the clusters that most clients are in, and one for all others."""
    numbers, sizes = np.unique(clusters, return_counts=True)
    largest = numbers[np.argsort(-sizes, kind="stable")][: len(CLUSTER_COLOURS)]
    own = dict(zip(sorted(largest.tolist()), CLUSTER_COLOURS, strict=False))
    return {number: own.get(number, OTHERS) for number in numbers.tolist()}


def _group_markers(groups: Sequence[int]) -> dict[int, str]:
    """A shape for each true group; one for all where there are more groups than shapes."""
    shapes = MARKERS if len(groups) <= len(MARKERS) else MARKERS[0] * len(groups)
    return dict(zip(groups, shapes, strict=False))


def _keys(colours: dict[int, str], markers: dict[int, str]) -> list[Line2D]:
    """The keys of clusters and true groups, of each as far as they can be told apart, and of the ring."""
    clusters = {f"cluster {number}": colour for number, colour in colours.items() if colour != OTHERS}
    clusters |= {"smaller clusters": OTHERS} if OTHERS in colours.values() else {}
    groups = markers.items() if len(set(markers.values())) == len(markers) and NO_GROUP not in markers else ()
    return [
        *(_key(name, marker="o", color=colour) for name, colour in clusters.items()),
        *(_key(f"group {group}", marker=marker, color=INK, markerfacecolor="none") for group, marker in groups),
        _key("data changed", **_RING),
    ]


def _key(label: str, **looks: Any) -> Line2D:
    return Line2D([], [], linestyle="", label=label, **looks)
