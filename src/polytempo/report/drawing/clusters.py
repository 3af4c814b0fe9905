"""The plots of a report that show clusters: their tree or their sizes over time, how alike the clients are, how well
the clusters fit the true groups, and how well each is served."""

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from polytempo.report.drawing.canvas import (
    INK,
    SMALL,
    NotebookFigure,
    canvas,
    column,
    legend_above,
    legend_height,
    name_axes,
    name_rows,
    row_height,
    styled,
)
from polytempo.report.drawing.colours import GROUP_COLOURS, group_colours
from polytempo.report.drawing.lines import bar, draw_lines, key, keys, limit_bars
from polytempo.report.drawing.matrices import UNKNOWN, coarse, groups_beside
from polytempo.report.drawing.tree import keys_of_groups
from polytempo.report.facts.choosing import evenly
from polytempo.report.facts.clusters import clusters_over_time, has_fit
from polytempo.report.facts.contenders import DASHES, contenders_of
from polytempo.report.facts.courses import POINTS
from polytempo.report.facts.lineage import NO_GROUP, groups_at, largest_group
from polytempo.report.facts.scales import in_column
from polytempo.report.run import Run
from polytempo.sim.result import Result

BARS = 40


def has_similarity(run: Run) -> bool:
    """Did the method ever compare two clients?"""
    if run.similarity is None or not len(run.per_client("per_client_cluster", -1)):
        return False
    among_others = ~np.eye(len(run.similarity), dtype=bool)
    return not np.isnan(run.similarity[among_others]).all()


def similarity(run: Run, colour: str) -> Figure:
    """How alike the clients are, as the method knows it, ordered by cluster and then by true group. Only for a run in
    which clients were compared."""
    cluster_of = run.per_client("per_client_cluster", -1).astype(int)
    groups = groups_at(run, np.inf)
    order = np.lexsort((groups, cluster_of))
    clients = len(order)
    matrix = np.array(run.similarity, dtype=float)[np.ix_(order, order)]
    np.fill_diagonal(matrix, np.nan)
    compared = matrix[~np.isnan(matrix)]
    low, high = np.percentile(compared, (1, 99))
    missing = len(compared) < clients * (clients - 1)
    np.fill_diagonal(matrix, high)

    colours = group_colours(run, colour)
    handles = keys_of_groups(colours)
    if missing:
        handles.append(Patch(color=UNKNOWN, label="never compared"))
    figure, axes, beside = _square_axes(legend_height(handles))
    shades = mpl.colormaps["viridis"].with_extremes(bad=UNKNOWN)
    image = axes.imshow(
        coarse(matrix), shades, vmin=low, vmax=high, interpolation="none", extent=(0, clients, clients, 0)
    )
    figure.colorbar(image, cax=beside).outline.set_visible(False)
    beside.tick_params(colors=INK, labelsize=SMALL, length=0)
    _borders(axes, cluster_of[order])
    groups_beside(axes, groups[order], colours)
    if len(np.unique(cluster_of)) > 1:
        name_axes(axes, "", "clients, by cluster")
    else:
        axes.set_yticks([])
        name_axes(axes, "", "clients" if groups[0] == NO_GROUP else "clients, by true group")
        axes.yaxis.labelpad = 16  # beside the strip of groups, where otherwise the numbers keep it away
    if handles:
        legend_above(axes, handles)
    return figure


def fit_over_time(runs: Sequence[Run], name: str, title: str) -> Figure:
    """How well the clusters fit the true groups (``purity`` or ``ari``) against virtual time, for methods that have
    clusters."""
    contenders = [contender for contender in contenders_of(runs) if has_fit(contender)]
    figure, axes = canvas()
    draw_lines(axes, contenders, "time", name)
    axes.set_xlim(left=0)
    axes.set_ylim(min(0.0, axes.get_ylim()[0]), 1.03)
    name_axes(axes, "virtual time (s)", title)
    legend_above(axes, keys(contenders))
    return figure


def accuracy_per_cluster(run: Run, colour: str) -> Figure:
    """The final accuracy of each cluster: the mean over its clients as a bar, from the worst to the best as a line."""
    cluster_of, accuracy = run.per_client("per_client_cluster", -1).astype(int), run.final_per_client()
    groups, colours = groups_at(run, np.inf), group_colours(run, colour)
    clusters = np.unique(cluster_of)
    if len(clusters) > BARS:
        means = [np.nanmean(accuracy[cluster_of == cluster]) for cluster in clusters]
        clusters = clusters[np.argsort(means, kind="stable")][evenly(len(clusters), BARS)]
    figure, axes = canvas(row_height(len(clusters), 0.3))
    labels = []
    for row, cluster in enumerate(clusters.tolist()):
        members = np.flatnonzero(cluster_of == cluster)
        shade = colours[largest_group(members, groups)]
        note = in_column(Result.accuracy, run.scale, float(np.nanmean(accuracy[members])))
        bar(axes, row, run.scale.factor * accuracy[members], shade, 1.0, note, 0.6)
        labels.append(f"cluster {cluster} ({len(members)})")
    name_rows(axes, labels)
    limit_bars(axes, run.scale)
    name_axes(axes, f"final {run.scale.axis}", "cluster (clients)")
    _legend_of_groups(axes, colours)
    return figure


def accuracy_per_cluster_over_time(run: Run, colour: str) -> Figure:
    """The mean accuracy of each cluster's clients while it lasted."""
    family = clusters_over_time(run)
    times = run.over_evaluations("time")
    figure, axes = canvas()
    drawn: list[Line2D] = []
    colours = group_colours(run, colour)
    for index, (number, cluster) in enumerate(family.items()):
        values = [(row.get("accuracy_per_cluster") or {}).get(str(number), np.nan) for row in run.evaluations]
        group = largest_group(cluster.clients, groups_at(run, cluster.ended))
        shade = (
            INK if cluster.parts else GROUP_COLOURS[index % len(GROUP_COLOURS)] if group == NO_GROUP else colours[group]
        )
        dash = DASHES[sum(line.get_color() == shade for line in drawn) % len(DASHES)]
        drawn.append(key(f"cluster {number}", shade, dash, 0.9 if cluster.parts else 1.6))
        kept = evenly(len(times), POINTS)
        axes.plot(
            times[kept],
            run.scale.factor * np.array(values)[kept],
            color=shade,
            linestyle=dash,
            linewidth=drawn[-1].get_linewidth(),
        )
    axes.set_xlim(left=0)
    name_axes(axes, "virtual time (s)", run.scale.axis)
    legend_above(axes, drawn)
    return figure


def _square_axes(legend: float) -> tuple[Figure, Axes, Axes]:
    """Square axes without grid for a matrix, with room above for a legend, and narrow ones beside it for its scale.
    (A constrained layout leaves a square in the middle of nowhere.)"""
    left, bottom, width = 0.6, 0.2, column()
    side = width - left - 0.65
    height = bottom + side + legend
    figure = NotebookFigure(figsize=(width, height))
    axes = styled(figure.add_axes((left / width, bottom / height, side / width, side / height)))
    axes.grid(visible=False)
    axes.spines[["left", "bottom"]].set_visible(False)
    scale = ((left + side + 0.12) / width, (bottom + side / 4) / height, 0.13 / width, side / 2 / height)
    return figure, axes, figure.add_axes(scale)


def _borders(axes: Axes, cluster_of: np.ndarray) -> None:
    """Lines between the clusters of an ordered matrix, and their numbers, where there is room."""
    starts = np.flatnonzero(np.diff(cluster_of, prepend=cluster_of[0] - 1))
    ends = np.append(starts[1:], len(cluster_of))
    bordered = np.maximum(ends - starts, np.roll(ends - starts, 1)) >= len(cluster_of) / 80
    for start in starts[bordered & (starts > 0)]:  # lines between single clients would hide them
        axes.axhline(start, color="white", linewidth=0.9)
        axes.axvline(start, color="white", linewidth=0.9)
    wide = ends - starts >= len(cluster_of) / 24
    ticks, names = ((starts + ends) / 2)[wide], [str(number) for number in cluster_of[starts][wide]]
    axes.set_xticks([])
    axes.set_yticks(ticks, names)
    axes.tick_params(pad=10)


def _legend_of_groups(axes: Axes, colours: dict[int, str]) -> None:
    handles = keys_of_groups(colours)
    if handles:
        legend_above(axes, handles)
