"""The drawings of who learns from whom: a heat map and a network, each at several times side by side."""

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

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
from polytempo.report.drawing.colours import group_colours
from polytempo.report.drawing.matrices import UNKNOWN, coarse, groups_beside
from polytempo.report.drawing.tree import keys_of_groups
from polytempo.report.facts.collaboration import Edge, edges_of, layout, neighbours_together
from polytempo.report.facts.graph import Graph
from polytempo.report.facts.lineage import groups_at, known_groups
from polytempo.report.facts.numbers import amount
from polytempo.report.facts.speed import slow_clients
from polytempo.report.run import Run

ABREAST = 3  # panels in a line
EDGES = 400  # in one panel
WIDTHS = (0.3, 0.6, 1.0, 1.7)  # points, of edges from weak to strong
EDGE_ALPHA = 0.4
NAMED = 40  # clients whose numbers are written beside their dots
NAMED_ROWS = 25  # and beside their rows
OF_OTHERS, OF_ITSELF = "viridis", "Oranges"  # colour maps
LEFT, GAP, BELOW, SCALES = 0.45, 0.45, 0.45, 0.95  # inches around panels


def heat_maps(run: Run, graphs: Sequence[Graph], colour: str) -> Figure:
    """The weight of every client in every other's model, all panels in the same order and colours; beside each the
    weights that clients have in their own."""
    order = neighbours_together(run.graphs()[-1], known_groups(run, np.inf))
    of_others = [coarse(graph.foreign()[np.ix_(order, order)]) for graph in graphs]
    shades = Normalize(0.0, _high(of_others), clip=True)
    colours = group_colours(run, colour)
    handles: list[Artist] = [*keys_of_groups(colours), *_key_of_unknown(graphs)]
    figure, panels = _panels(graphs, handles, SCALES)
    for index, (axes, graph, weights) in enumerate(zip(panels, graphs, of_others, strict=True)):
        image = mpl.colormaps[OF_OTHERS](shades(np.nan_to_num(weights)))
        image[np.isnan(weights)] = to_rgba(UNKNOWN)
        if len(weights) == graph.clients:
            known = np.flatnonzero(graph.estimated()[order])
            image[known, known] = 1.0  # white
        axes.imshow(image, interpolation="none", extent=(0, graph.clients, graph.clients, 0))
        groups_beside(axes, groups_at(run, np.inf)[order], colours)
        _name_clients(axes, order, "whose model" if index % ABREAST == 0 else "")
        _draw_self_weights(axes, graph.matrix().diagonal()[order])
    _scale(figure, panels, 0.55, OF_OTHERS, shades, "another’s weight")
    _scale(figure, panels, 0.0, OF_ITSELF, Normalize(0.0, 1.0), "own weight")
    if handles:
        legend_above(panels[0], handles, 2 * column())
    return figure


def networks(run: Run, graphs: Sequence[Graph], colour: str) -> Figure:
    """Clients as dots and who learns from whom as lines between them, everybody at the same place in all panels."""
    last = run.graphs()[-1]
    places = layout(last, neighbours_together(last, known_groups(run, np.inf)))
    of_panels = [edges_of(graph, EDGES) for graph in graphs]
    bounds = _bounds([edge.weight for edges in of_panels for edge in edges])
    slow = slow_clients(run)
    size = 4.5 if last.clients <= 150 else 3.0
    colours = group_colours(run, colour)
    handles: list[Artist] = [*keys_of_groups(colours), *_key_of_unknown(graphs), *_keys_of_edges(bounds)]
    if slow.any():
        handles.append(Line2D([], [], label="slow device", **_ring(size)))
    figure, panels = _panels(graphs, handles, right=0.0)
    for axes, graph, edges in zip(panels, graphs, of_panels, strict=True):
        axes.set_aspect("equal", "datalim")
        axes.set_xticks([])
        axes.set_yticks([])
        _draw_edges(axes, places, edges, bounds)
        groups, known = groups_at(run, graph.time), graph.estimated()
        for group in np.unique(groups[known]).tolist():
            _draw_dots(axes, places[known & (groups == group)], color=colours[group], marker="o", markersize=size)
        _draw_dots(axes, places[~known], color=UNKNOWN, marker="o", markersize=size)
        _draw_dots(axes, places[slow], **_ring(size))
        if graph.clients <= NAMED:
            for client, place in enumerate(places):
                axes.annotate(
                    str(client), tuple(place), xytext=(5, 4), textcoords="offset points", fontsize=6, color=INK
                )
    if handles:
        legend_above(panels[0], handles, 2 * column())
    return figure


def _high(matrices: Sequence[np.ndarray]) -> float:
    """Where the colours end: one in a hundred weights is stronger."""
    positive = np.concatenate([matrix[matrix > 0] for matrix in matrices])
    return float(np.percentile(positive, 99)) if len(positive) else 1.0


def _panels(graphs: Sequence[Graph], handles: Sequence[Artist], right: float) -> tuple[Figure, list[Axes]]:
    """Square axes, each over its time, with room above for a legend and on the right for scales."""
    side = (2 * column() - LEFT - right) / ABREAST - GAP
    lines = -(-len(graphs) // ABREAST)
    width = 2 * column()
    height = legend_height(handles, width) + lines * (side + BELOW)
    figure = NotebookFigure(figsize=(width, height))
    panels = []
    for index, graph in enumerate(graphs):
        line, place = divmod(index, ABREAST)
        corner = LEFT + place * (side + GAP), BELOW + (lines - 1 - line) * (side + BELOW)
        axes = styled(figure.add_axes((corner[0] / width, corner[1] / height, side / width, side / height)))
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        name_axes(axes, f"{amount(graph.time)} s, {graph.updates:,} updates")
        axes.xaxis.labelpad = 9
        panels.append(axes)
    return figure, panels


def _name_clients(axes: Axes, order: np.ndarray, title: str) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    if len(order) <= NAMED_ROWS:
        axes.set_yticks(np.arange(len(order)) + 0.5, [str(client) for client in order], fontsize=5)
        axes.tick_params(axis="y", pad=6)
    axes.set_ylabel(title, fontsize=SMALL + 0.5, color=INK, labelpad=3 if len(order) <= NAMED_ROWS else 10)


def _draw_self_weights(axes: Axes, weights: np.ndarray) -> None:
    """A column of its own, since what clients keep of themselves would outshine all other weights."""
    beside = axes.inset_axes((1.03, 0.0, 0.045, 1.0))
    shades = mpl.colormaps[OF_ITSELF].with_extremes(bad=UNKNOWN)
    beside.imshow(weights[:, None], shades, vmin=0.0, vmax=1.0, interpolation="none", aspect="auto")
    beside.set_axis_off()


def _scale(figure: Figure, panels: Sequence[Axes], bottom: float, colours: str, shades: Normalize, title: str) -> None:
    """A colour bar on the right of the first line of panels, beginning at this share of their height."""
    last = panels[:ABREAST][-1].get_position()
    where = (last.x1 + 0.045, last.y0 + bottom * last.height, 0.011, 0.4 * last.height)
    beside = figure.add_axes(where)
    figure.colorbar(ScalarMappable(shades, mpl.colormaps[colours]), cax=beside).outline.set_visible(False)
    beside.tick_params(colors=INK, labelsize=SMALL, length=0)
    beside.set_title(title, fontsize=SMALL, color=INK, loc="left")


def _key_of_unknown(graphs: Sequence[Graph]) -> list[Patch]:
    everybody = all(graph.estimated().all() for graph in graphs)
    return [] if everybody else [Patch(color=UNKNOWN, label="not estimated yet")]


def _ring(size: float) -> dict[str, Any]:
    """Around a dot of this size."""
    return {
        "linestyle": "",
        "marker": "o",
        "markersize": size + 2.0,
        "markerfacecolor": "none",
        "markeredgecolor": INK,
        "markeredgewidth": 0.8,
    }


def _draw_dots(axes: Axes, places: np.ndarray, **looks: Any) -> None:
    axes.plot(places[:, 0], places[:, 1], **{"linestyle": "", **looks})


def _bounds(weights: Sequence[float]) -> np.ndarray:
    """The weights at which edges get the next width. A few weights may be far stronger than all others."""
    weak, strong = np.percentile(weights, (0, 99)) if weights else (0.0, 1.0)
    return np.linspace(weak, strong, len(WIDTHS) + 1)[1:-1]


def _draw_edges(axes: Axes, places: np.ndarray, edges: Sequence[Edge], bounds: np.ndarray) -> None:
    """One path per width, the thin ones below: an element per edge would make a large file."""
    weights = np.array([edge.weight for edge in edges])
    ends = np.array([(edge.first, edge.second) for edge in edges], int).reshape(-1, 2)
    width_of = np.searchsorted(bounds, weights)
    for number, width in enumerate(WIDTHS):
        lines = places[ends[width_of == number]]
        broken = np.concatenate([lines, np.full((len(lines), 1, 2), np.nan)], axis=1).reshape(-1, 2)
        axes.plot(broken[:, 0], broken[:, 1], color=INK, alpha=EDGE_ALPHA, linewidth=width, zorder=1)


def _keys_of_edges(bounds: np.ndarray) -> list[Line2D]:
    """The thinnest and the thickest edge."""
    if bounds[0] == bounds[-1]:
        return [Line2D([], [], label=f"weight {bounds[0]:.2g}", color=INK, alpha=EDGE_ALPHA, linewidth=WIDTHS[0])]
    ends = ((f"weight up to {bounds[0]:.2g}", WIDTHS[0]), (f"over {bounds[-1]:.2g}", WIDTHS[-1]))
    return [Line2D([], [], label=text, color=INK, alpha=EDGE_ALPHA, linewidth=width) for text, width in ends]
