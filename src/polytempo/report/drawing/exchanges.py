"""The plots of a report that show exchanges, in which a client hands in its update and is answered with its next model:
how good its model is before and after, how well the server knows the mixture of its data, how good the model of each
cluster is, and what an answer weighs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from polytempo.report.drawing.canvas import INK, canvas, legend_above, name_axes, name_rows, row_height
from polytempo.report.drawing.lines import bar, draw_band, key, keys
from polytempo.report.facts.contenders import Contender, mean
from polytempo.report.facts.courses import band_of
from polytempo.report.facts.exchanges import cluster_course, course, divergence, uniform_references
from polytempo.report.facts.numbers import amount
from polytempo.report.facts.scales import common_scale


def accuracy_around_exchanges(contenders: Sequence[Contender]) -> Figure:
    """The accuracy of clients' models on their own data against virtual time: dashed what they had trained before an
    exchange, solid what they were answered with."""
    figure, axes = canvas()
    scale = common_scale([run for contender in contenders for run in contender.runs])
    for contender in contenders:
        at, _, before, _ = band_of([course(run, "before", scale.factor) for run in contender.runs])
        axes.plot(at, before, color=contender.colour, linestyle="--", linewidth=1.1, **_dot_if_alone(at))
        after = band_of([course(run, "after", scale.factor) for run in contender.runs])
        draw_band(axes, contender, after, linestyle="-", **_dot_if_alone(after[0]))
    axes.set_xlim(left=0)
    name_axes(axes, "virtual time (s)", scale.axis)
    of_contenders = [key(contender.label, contender.colour, "-", 2.0) for contender in contenders]
    legend_above(axes, [*of_contenders, key("before", INK, "--", 1.1), key("after", INK, "-", 1.6)])
    return figure


def divergence_over_time(contenders: Sequence[Contender]) -> Figure:
    """KL(true || estimated mixture) against virtual time, and what it would be if the server always said that a client
    has as much of every cluster."""
    figure, axes = canvas()
    for contender in contenders:
        band = divergence(contender)
        draw_band(axes, contender, band, **_dot_if_alone(band[0]))
    handles = keys(list(contenders))
    references = uniform_references(contenders)
    for contender, (at, uniform) in references:
        shared = len(references) == 1
        colour, label = (INK, "uniform mixture") if shared else (contender.colour, f"uniform, {contender.label}")
        axes.plot(at, uniform, color=colour, linestyle="--", linewidth=1.0, **_dot_if_alone(at))
        handles.append(key(label, colour, "--", 1.0))
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    name_axes(axes, "virtual time (s)", "KL(true || estimated)")
    legend_above(axes, handles)
    return figure


def cluster_accuracy_over_time(contenders: Sequence[Contender]) -> Figure:
    """The accuracy of each cluster's model on that cluster's samples against virtual time as thin lines, their mean as
    a thick one; means over seeds."""
    figure, axes = canvas()
    for contender in contenders:
        for cluster in range(max(len(cluster_course(run)[1]) for run in contender.runs)):
            lines = [(at, of[cluster]) for at, of in map(cluster_course, contender.runs) if cluster < len(of)]
            at, _, middle, _ = band_of(lines)
            axes.plot(at, middle, color=contender.colour, linewidth=0.7, alpha=0.6)
        lines = [(at, of.mean(axis=0)) for at, of in map(cluster_course, contender.runs) if len(of)]
        at, _, middle, _ = band_of(lines)
        axes.plot(at, middle, color=contender.colour, linestyle=contender.dash, linewidth=2.0)
    axes.set_xlim(left=0)
    scale = common_scale([run for contender in contenders for run in contender.runs])
    name_axes(axes, "virtual time (s)", scale.axis.replace(scale.name, f"{scale.name} of cluster models", 1))
    legend_above(axes, [*keys(list(contenders)), key("mean", INK, "-", 2.0), key("one cluster", INK, "-", 0.7)])
    return figure


def weight_of_answers(contenders: Sequence[Contender]) -> Figure:
    """What a client downloads per exchange, as a bar per method, beside it how many models that is."""
    figure, axes = canvas(row_height(len(contenders)))
    longest = 0.0
    for row, contender in enumerate(contenders):
        kilobytes, models = contender.figures("bytes_per_exchange") / 1e3, contender.mean("downloads_ratio")
        of_model = "" if np.isnan(models) else f" ({models:.3g} {'model' if models == 1 else 'models'})"
        bar(axes, row, kilobytes, contender.colour, 1.0, amount(mean(kilobytes)) + of_model, 0.55)
        longest = np.nanmax([longest, *kilobytes])
    name_rows(axes, [contender.label for contender in contenders])
    axes.set_xlim(0, 1.5 * longest or 1.0)
    name_axes(axes, "download per exchange (kB)")
    return figure


def _dot_if_alone(at: np.ndarray) -> dict[str, Any]:
    """A line of one point would not be seen."""
    return {"marker": "o", "markersize": 3.5} if len(at) == 1 else {}
