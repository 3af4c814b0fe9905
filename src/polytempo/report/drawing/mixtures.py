"""The mixtures of clients' data, as they are and as the server estimates them: what a run knows of them, and the plots
that set one against the other."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from polytempo.report.drawing.canvas import INK, SMALL, NotebookFigure, canvas, column, legend_above, name_axes, styled
from polytempo.report.drawing.colours import distinct_colours
from polytempo.report.drawing.lines import key
from polytempo.report.facts.choosing import evenly
from polytempo.report.facts.mixtures import EstimatedMixtures, busiest_clients, mixtures
from polytempo.report.facts.numbers import NOTHING
from polytempo.report.run import Run

STEPS = 40  # exchanges of a client that its bands show
DOTS = 1_000
GAP = 0.12  # between two bands, each of height 1

# Inches
ROW, AXIS = 1.05, 0.5


def mixture_bands(run: Run) -> Figure:
    """For a handful of clients two bands against virtual time, cut into the shares of the clusters: above what the
    client's data were at its exchanges, below what the server took them for."""
    found = mixtures(run)
    clients = busiest_clients(found)
    colours = distinct_colours(found.true.shape[1])
    columns = min(2, len(clients))
    rows = -(-len(clients) // columns)
    figure = NotebookFigure(figsize=(2 * column(), AXIS + ROW * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True)
    end = max(float(run.virtual_time or 0.0), float(found.times[-1]))
    for axes, client in zip(grid.flat, clients, strict=False):
        _draw_bands(styled(axes), client, found.of(client), colours, end)
    for axes in grid.flat[len(clients) :]:
        axes.axis("off")
    for axes in grid.flat[len(clients) - columns : len(clients)]:
        axes.tick_params(labelbottom=True)
        name_axes(axes, "virtual time (s)")
    handles = [Patch(color=colour, label=f"cluster {number}") for number, colour in enumerate(colours)]
    figure.legend(
        handles=handles,
        loc="outside upper left",
        ncols=min(len(handles), 10),
        fontsize=SMALL,
        labelcolor=INK,
        frameon=False,
        handlelength=1.6,
        columnspacing=1.2,
    )
    return figure


def _draw_bands(axes: Axes, client: int, found: EstimatedMixtures, colours: Sequence[str], end: float) -> None:
    shown = found.take(evenly(len(found), STEPS))
    at = np.append(shown.times, end)
    for shares, bottom in ((shown.true, 1 + GAP), (shown.estimated, 0.0)):
        tops = bottom + np.cumsum(shares, axis=1)
        lower = np.full(len(shown), bottom)
        for cluster, colour in enumerate(colours):
            upper = tops[:, cluster]
            axes.fill_between(
                at, np.append(lower, lower[-1]), np.append(upper, upper[-1]), step="post", color=colour, linewidth=0
            )
            lower = upper
    axes.set_yticks([0.5, 1.5 + GAP], ["estimated", "true"])
    axes.set_ylim(0, 2 + GAP)
    axes.set_xlim(0, end)
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.set_title(f"client {client}, {len(found):,} exchanges", loc="left", fontsize=SMALL + 0.5, color=INK, pad=3)


def estimated_against_true(run: Run) -> Figure:
    """Every share of the last quarter of the exchanges, estimated against true, with the line on which both agree."""
    found = mixtures(run).last_quarter()
    colours = distinct_colours(found.true.shape[1])
    shown = found.take(evenly(len(found), max(1, DOTS // len(colours))))
    figure, axes = canvas(0.92 * column())
    for cluster, colour in enumerate(colours):
        x, y = shown.true[:, cluster], shown.estimated[:, cluster]
        axes.plot(x, y, linestyle="", marker="o", markersize=3.2, markeredgewidth=0, color=colour, alpha=0.6)
    axes.plot([0, 1], [0, 1], color=INK, linestyle="--", linewidth=0.8)
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    axes.set_aspect("equal")
    name_axes(axes, "true share", "estimated share")
    clusters = [_key(f"cluster {number}", colour) for number, colour in enumerate(colours)]
    legend_above(axes, [*clusters, key(f"equal (r = {_correlation(found)})", INK, "--", 0.8)])
    return figure


def _correlation(found: EstimatedMixtures) -> str:
    true, estimated = found.true.ravel(), found.estimated.ravel()
    if np.ptp(true) == 0 or np.ptp(estimated) == 0:
        return NOTHING
    return f"{np.corrcoef(true, estimated)[0, 1]:.2f}"


def _key(label: str, colour: str) -> Line2D:
    return Line2D([], [], linestyle="", marker="o", markersize=4, color=colour, label=label)
