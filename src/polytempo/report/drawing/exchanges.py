"""The plots of a report that show exchanges, in which a client hands in its update and is answered with its next model:
how good its model is before and after, how well the server knows the mixture of its data, how good the model of each
cluster is, and what an answer weighs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from polytempo.report.drawing.canvas import INK, canvas, legend_above, name_axes, name_rows, row_height
from polytempo.report.drawing.lines import Band, Line, band_of, bar, draw_band, key, keys
from polytempo.report.drawing.mixtures import mixtures, uniform_kl
from polytempo.report.facts.contenders import WORLD, Method, as_text, mean
from polytempo.report.run import Run
from polytempo.report.table import amount

POINTS = 40  # of a line, at most
EACH = 10  # exchanges that a point is the mean of, at least, where there are enough for a few points
FEW = 4


def accuracy_around_exchanges(methods: Sequence[Method]) -> Figure:
    """The accuracy of clients' models on their own data against virtual time: dashed what they had trained before an
    exchange, solid what they were answered with."""
    figure, axes = canvas()
    for method in methods:
        at, _, before, _ = band_of([course(run, "before", 100) for run in method.runs])
        axes.plot(at, before, color=method.colour, linestyle="--", linewidth=1.1, **_dot_if_alone(at))
        after = band_of([course(run, "after", 100) for run in method.runs])
        draw_band(axes, method, after, linestyle="-", **_dot_if_alone(after[0]))
    axes.set_xlim(left=0)
    name_axes(axes, "virtual time (s)", "accuracy (%)")
    of_methods = [key(method.label, method.colour, "-", 2.0) for method in methods]
    legend_above(axes, [*of_methods, key("before", INK, "--", 1.1), key("after", INK, "-", 1.6)])
    return figure


def divergence_over_time(methods: Sequence[Method]) -> Figure:
    """KL(true || estimated mixture) against virtual time, and what it would be if the server always said that a client
    has as much of every cluster."""
    figure, axes = canvas()
    for method in methods:
        band = _divergence(method)
        draw_band(axes, method, band, **_dot_if_alone(band[0]))
    handles = keys(list(methods))
    references = uniform_references(methods)
    for method, (at, divergence) in references:
        shared = len(references) == 1
        colour, label = (INK, "uniform mixture") if shared else (method.colour, f"uniform, {method.label}")
        axes.plot(at, divergence, color=colour, linestyle="--", linewidth=1.0, **_dot_if_alone(at))
        handles.append(key(label, colour, "--", 1.0))
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    name_axes(axes, "virtual time (s)", "KL(true || estimated)")
    legend_above(axes, handles)
    return figure


def uniform_references(methods: Sequence[Method]) -> list[tuple[Method, Line]]:
    """What the uniform mixture would have had over the exchanges of all methods that share a world, with the first of
    these methods; usually there is one world."""
    worlds: dict[tuple[str, ...], list[Method]] = {}
    for method in methods:
        world = tuple(as_text(method.runs[0].config.get(name)) for name in WORLD)
        worlds.setdefault(world, []).append(method)
    return [(same[0], _uniform(same)) for same in worlds.values()]


def cluster_accuracy_over_time(methods: Sequence[Method]) -> Figure:
    """The accuracy of each cluster's model on that cluster's samples against virtual time as thin lines, their mean as
    a thick one; means over seeds."""
    figure, axes = canvas()
    for method in methods:
        for cluster in range(max(len(cluster_course(run)[1]) for run in method.runs)):
            lines = [(at, of[cluster]) for at, of in map(cluster_course, method.runs) if cluster < len(of)]
            at, _, middle, _ = band_of(lines)
            axes.plot(at, middle, color=method.colour, linewidth=0.7, alpha=0.6)
        lines = [(at, of.mean(axis=0)) for at, of in map(cluster_course, method.runs) if len(of)]
        at, _, middle, _ = band_of(lines)
        axes.plot(at, middle, color=method.colour, linestyle=method.dash, linewidth=2.0)
    axes.set_xlim(left=0)
    name_axes(axes, "virtual time (s)", "accuracy of cluster models (%)")
    legend_above(axes, [*keys(list(methods)), key("mean", INK, "-", 2.0), key("one cluster", INK, "-", 0.7)])
    return figure


def cluster_course(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """When the clusters' models were evaluated, and their accuracies in percent, clusters x evaluations."""
    known = [
        (row["time"], row["cluster_accuracy"]) for row in run.evaluations if row.get("cluster_accuracy") is not None
    ]
    if not known:
        return np.array([]), np.empty((0, 0))
    times, accuracies = zip(*known, strict=True)
    return np.array(times, float), 100 * np.array(accuracies, float).T


def weight_of_answers(methods: Sequence[Method]) -> Figure:
    """What a client downloads per exchange, as a bar per method, beside it how many models that is."""
    figure, axes = canvas(row_height(len(methods)))
    longest = 0.0
    for row, method in enumerate(methods):
        kilobytes, models = method.figures("bytes_per_exchange") / 1e3, method.mean("downloads_ratio")
        of_model = "" if np.isnan(models) else f" ({models:.3g} {'model' if models == 1 else 'models'})"
        bar(axes, row, kilobytes, method.colour, 1.0, amount(mean(kilobytes)) + of_model, 0.55)
        longest = np.nanmax([longest, *kilobytes])
    name_rows(axes, [method.label for method in methods])
    axes.set_xlim(0, 1.5 * longest or 1.0)
    name_axes(axes, "download per exchange (kB)")
    return figure


def course(run: Run, name: str, scale: float = 1.0) -> Line:
    """How a figure of a run's exchanges goes on over time: means of successive exchanges, as many in every point."""
    return _means(run.over_exchanges("time"), scale * run.over_exchanges(name))


def _divergence(method: Method) -> Band:
    return band_of([course(run, "kl") for run in method.runs])


def _uniform(methods: Sequence[Method]) -> Line:
    """As far as the lines of the methods go: those of several seeds end with the shortest seed."""
    of_runs = [mixtures(run) for method in methods for run in method.runs]
    times = np.concatenate([found.times for found in of_runs])
    divergences = np.concatenate([uniform_kl(found.true) for found in of_runs])
    order = np.argsort(times, kind="stable")
    at, means = _means(times[order], divergences[order])
    beside = np.concatenate([_divergence(method)[0] for method in methods])
    within = np.unique(np.clip(at, beside.min(), beside.max()))
    return within, np.interp(within, at, means)


def _means(times: np.ndarray, values: np.ndarray) -> Line:
    """The mean time and the mean value of successive exchanges; those without a value do not count."""
    known = np.flatnonzero(~np.isnan(values))
    if not len(known):
        return np.array([]), np.array([])
    parts = np.array_split(known, np.clip(len(known) // EACH, min(len(known), FEW), POINTS))
    return np.array([times[part].mean() for part in parts]), np.array([values[part].mean() for part in parts])


def _dot_if_alone(at: np.ndarray) -> dict[str, Any]:
    """A line of one point would not be seen."""
    return {"marker": "o", "markersize": 3.5} if len(at) == 1 else {}
