"""The plots of a report, one function each, from runs to a matplotlib figure. Runs of one method over several seeds
become one line or bar with the range between its seeds; a method keeps its colour through all plots."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from polytempo.report.drawing.canvas import (
    GRID,
    INK,
    SMALL,
    TEXT,
    NotebookFigure,
    canvas,
    column,
    legend_above,
    name_axes,
    name_rows,
    plain,
    row_height,
    styled,
)
from polytempo.report.drawing.lines import bar, draw_lines, key, keys, limit_bars, marks
from polytempo.report.drawing.timeline import draw_timeline
from polytempo.report.facts.choosing import evenly
from polytempo.report.facts.contenders import Contender, contenders_of, has_target, mean
from polytempo.report.facts.courses import POINTS, over_seeds
from polytempo.report.facts.numbers import amount
from polytempo.report.facts.projection import FEW, drifts
from polytempo.report.facts.scales import common_scale, in_column
from polytempo.report.run import Run
from polytempo.sim.result import Result


def accuracy_over_time(runs: Sequence[Run]) -> Figure:
    """Mean accuracy over clients of the models that they use, against virtual time."""
    figure, axes = canvas()
    _draw_accuracy(axes, contenders_of(runs), "time")
    return figure


def accuracy_over_updates(runs: Sequence[Run]) -> Figure:
    """The same against the number of updates the server received."""
    figure, axes = canvas()
    _draw_accuracy(axes, contenders_of(runs), "updates")
    return figure


def per_client_spread(runs: Sequence[Run]) -> Figure:
    """Final accuracy of the model that every client uses, sorted from worst to best, all seeds of a method together."""
    figure, axes = canvas()
    contenders, scale = contenders_of(runs), common_scale(runs)
    for contender in contenders:
        accuracies = np.concatenate([run.final_per_client("used") for run in contender.runs])
        accuracies = np.sort(accuracies[~np.isnan(accuracies)])[:: 1 if scale.higher_is_better else -1]
        if not len(accuracies):
            continue
        share = 100 * (np.arange(len(accuracies)) + 0.5) / len(accuracies)
        few: dict[str, Any] = {"marker": "o", "markersize": 2.5} if len(accuracies) <= 60 else {}
        marker = marks(contender, len(axes.lines)) or few
        kept = evenly(len(accuracies), POINTS)
        axes.plot(
            share[kept],
            scale.factor * accuracies[kept],
            color=contender.colour,
            linestyle=contender.dash,
            linewidth=1.4,
            **marker,
        )
    axes.set_xlim(0, 100)
    name_axes(axes, "clients, from worst to best (%)", f"final {scale.axis}")
    legend_above(axes, keys(contenders))
    return figure


def fifths(runs: Sequence[Run]) -> Figure:
    """Final accuracy of the clients with the slowest and the fastest fifth of the devices, side by side."""
    contenders, scale = contenders_of(runs), common_scale(runs)
    figure, axes = canvas(row_height(len(contenders), 0.5))
    for row, contender in enumerate(contenders):
        for name, offset, alpha in (("slowest", -0.19, 1.0), ("fastest", 0.19, 0.45)):
            values = contender.figures(f"accuracy_{name}_fifth")
            note = in_column(Result.accuracy, scale, mean(values))
            bar(axes, row + offset, scale.factor * values, contender.colour, alpha, note)
    name_rows(axes, [contender.label for contender in contenders])
    limit_bars(axes, scale)
    name_axes(axes, f"final {scale.axis}")
    legend_above(axes, [Patch(color=INK, label="slowest fifth"), Patch(color=INK, alpha=0.45, label="fastest fifth")])
    return figure


def staleness(runs: Sequence[Run]) -> Figure:
    """How many versions old the model was that an update came from, as a share of each method's updates."""
    contenders = contenders_of(runs)
    figure, axes = canvas(row_height(len(contenders), 0.55) if len(contenders) > 1 else 3.0)
    _draw_staleness(axes, contenders)
    return figure


def bytes_over_time(runs: Sequence[Run]) -> Figure:
    """Traffic summed over clients against virtual time: up (from clients) solid, down (to clients) dashed."""
    figure, axes = canvas()
    contenders = contenders_of(runs)
    for contender in contenders:
        for name, dash in (("bytes_up", "-"), ("bytes_down", "--")):
            at, _, middle, _ = over_seeds(contender, "time", name, 1e-6)
            marked = marks(contender, len(axes.lines) // 2)
            axes.plot(at, middle, color=contender.colour, linestyle=dash, linewidth=1.4, **marked)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    name_axes(axes, "virtual time (s)", "traffic so far (MB)")
    of_contenders = [replace(contender, dash="-") for contender in contenders]
    legend_above(axes, [*keys(of_contenders), key("up", INK, "-", 1.4), key("down", INK, "--", 1.4)])
    return figure


def time_to_target(runs: Sequence[Run]) -> Figure:
    """Virtual seconds until the mean accuracy first reached the target."""
    contenders = contenders_of(runs)
    figure, axes = canvas(row_height(len(contenders)))
    for row, contender in enumerate(contenders):
        values = contender.figures("time_to_target")
        reached = int(np.count_nonzero(~np.isnan(values)))
        missed = f" ({reached} of {len(values)} seeds)" if reached < len(values) else ""
        note = amount(mean(values)) + missed if reached else "not reached" if has_target(contender) else "no target"
        bar(axes, row, values, contender.colour, 1.0, note, 0.55)
    name_rows(axes, [contender.label for contender in contenders])
    longest = np.nanmax([0.0, *(value for contender in contenders for value in contender.figures("time_to_target"))])
    axes.set_xlim(0, 1.3 * longest or 1.0)
    name_axes(axes, "virtual time to target (s)")
    return figure


def overview(run: Run) -> Figure:
    """One run at a glance: accuracy against virtual time and updates, staleness, and who trained when."""
    figure = NotebookFigure(figsize=(2.1 * column(), 6.8), layout="constrained")
    (over_time, over_updates), (stale, trained) = figure.subplots(2, 2)
    contenders = contenders_of([run])
    _draw_accuracy(styled(over_time), contenders, "time")
    _draw_accuracy(styled(over_updates), contenders, "updates")
    _draw_staleness(styled(stale), contenders)
    draw_timeline(styled(trained), run, rows=20)
    figure.suptitle(plain(run.summary(), longest=120), fontsize=TEXT, color=INK, x=0.01, ha="left")
    return figure


def _draw_accuracy(axes: Axes, contenders: list[Contender], against: str) -> None:
    scale = common_scale([run for contender in contenders for run in contender.runs])
    draw_lines(axes, contenders, against, "accuracy_used", scale.factor)
    lines = keys(contenders)
    if len(contenders) == 1:  # with more methods these lines would hide each other, and `fifths` shows the ends
        colour = contenders[0].colour
        for name, dash in (("slowest", ":"), ("fastest", "--")):
            at, _, middle, _ = over_seeds(contenders[0], against, f"accuracy_{name}_fifth", scale.factor)
            axes.plot(at, middle, color=colour, linestyle=dash, linewidth=0.9)
            lines.append(key(f"{name} fifth", colour, dash, 0.9))
    targets = {
        float(t) for contender in contenders for run in contender.runs if (t := run.config.get("target")) is not None
    }
    if len(targets) == 1:
        target = scale.factor * targets.pop()
        axes.axhline(target, color=INK, linewidth=0.7, linestyle=(0, (2, 3)))
        lines.append(key(f"target {target:g}{' %' if scale.share else ''}", INK, (0, (2, 3)), 0.7))
    drifted = sorted({time for contender in contenders for run in contender.runs for time in drifts(run)})
    if against == "time" and 0 < len(drifted) <= FEW:
        for time in drifted:
            axes.axvline(time, color=INK, linewidth=0.7, linestyle="--")
        lines.append(key("drift", INK, "--", 0.7))
    axes.set_xlim(left=0)
    name_axes(axes, "virtual time (s)" if against == "time" else "updates", scale.axis)
    legend_above(axes, lines)


def _draw_staleness(axes: Axes, contenders: list[Contender]) -> None:
    values = [np.concatenate([run.over_updates("staleness") for run in contender.runs]) for contender in contenders]
    highest = max((int(stale.max()) for stale in values if len(stale)), default=0)
    width = max(1, -(-(highest + 1) // 40))
    edges = np.arange(-0.5, highest + width + 0.5, width)
    notes = [f"mean {amount(float(stale.mean()))}" if len(stale) else "no updates" for stale in values]
    shares = [100 * np.histogram(stale, edges)[0] / max(len(stale), 1) for stale in values]
    style: dict[str, Any] = {"ha": "right", "fontsize": SMALL, "color": INK}
    if len(contenders) == 1:
        axes.stairs(shares[0], edges, fill=True, color=contenders[0].colour, alpha=0.75)
        axes.text(1, 1.01, notes[0], transform=axes.transAxes, va="bottom", **style)
        name_axes(axes, "staleness (versions)", "share of updates (%)")
    else:
        # Every method fills its own row: shapes are compared, and one peak does not flatten the others.
        for row, (contender, share, note) in enumerate(zip(contenders, shares, notes, strict=True)):
            base = row + 0.3
            axes.axhline(base, color=GRID, linewidth=0.8, zorder=0)
            heights = base - 0.75 * share / max(share.max(), 1)
            axes.stairs(heights, edges, baseline=base, fill=True, color=contender.colour, alpha=0.75)
            axes.text(edges[-1], row, note, va="center", **style)
        name_rows(axes, [contender.label for contender in contenders])
        name_axes(axes, "staleness (versions)")
    axes.set_xlim(edges[0], edges[-1])
