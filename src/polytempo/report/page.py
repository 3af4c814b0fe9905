"""The report: one HTML file with everything in it, that opens offline and reads well on paper, desk and phone."""

import math
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from polytempo.core.errors import DISK_ERRORS, PassingError, UserError
from polytempo.report.drawing import clusters, figures
from polytempo.report.drawing.arrivals import idle_by_speed, idle_shares
from polytempo.report.drawing.traffic import traffic_caption, traffic_rate, with_traffic
from polytempo.report.facts.contenders import (
    Method,
    as_text,
    better_off,
    by_name,
    differing,
    file_names,
    methods_of,
    plain_name,
    proxy_settings,
    settings,
)
from polytempo.report.facts.lineage import group_changes, has_joiners, lineage
from polytempo.report.run import Run
from polytempo.report.sections.arrivals import arrival_section
from polytempo.report.sections.collaboration import collaboration_section
from polytempo.report.sections.drift import drift_section
from polytempo.report.sections.exchanges import exchange_section
from polytempo.report.sections.markup import bold, html_figure, html_table, named, section
from polytempo.report.style import CSS
from polytempo.report.table import NOTHING, amount, comparison_rows, percent

TIMELINES = 6  # methods that get a timeline, clusters, graphs and arrival groups of their own


def write_report(runs: Sequence[Run], path: Path, title: str, graph_at: Sequence[float] = ()) -> Path:
    """Write the report on some runs to ``path`` and return it. The same runs always give the same bytes. ``graph_at``
    are the virtual times at which it shows who learns from whom."""
    path = Path(path)
    html = page(runs, title, graph_at)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(html, encoding="utf-8")
    except OSError as error:
        kind = PassingError if error.errno in DISK_ERRORS else UserError
        raise kind(f"Cannot write the report to {path}: {error.strerror}. Choose another path (--out).") from None
    return path


def page(runs: Sequence[Run], title: str, graph_at: Sequence[float] = ()) -> str:
    """The report as HTML text."""
    methods = methods_of(runs)
    sections = [
        section("What was run", _settings(methods)),
        section("Results", _results(runs, methods)),
        section("Better off than alone?", _better_off(runs, methods)),
        section("Figures", _figures(runs, methods)),
        section("Exchanges", exchange_section(methods, TIMELINES)),
        section("Clusters", _clusters(runs, methods)),
        section("Clients before and after a drift", drift_section(methods, TIMELINES)),
        section("Who learns from whom", collaboration_section(methods, TIMELINES, graph_at)),
        section("Arrival groups", arrival_section(methods, TIMELINES)),
        section("Who trained when", _timelines(methods)),
        section("Every run", _every_run(methods)),
    ]
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{CSS}</style>
</head>
<body>
<main>
<h1>{escape(title)}</h1>
<p class="lead">{_lead(methods)}</p>
{"".join(sections)}</main>
</body>
</html>
"""


def _lead(methods: list[Method]) -> str:
    """Which methods, and what of their world all of them share."""
    of_methods = _shown_settings(methods)
    different = differing(of_methods)
    shared = [
        words.format(of_methods[0][key])
        for key, words in (
            ("data", "{}"),
            ("clients", "{} clients"),
            ("partition", "partition {}"),
            ("devices", "devices {}"),
        )
        if key not in different and of_methods[0].get(key)
    ]
    names = ", ".join(method.label for method in methods)
    return f"<strong>{escape(names)}</strong>{escape(' · '.join(['', *shared]))}"


def _results(runs: Sequence[Run], methods: list[Method]) -> str:
    rows = comparison_rows(runs)
    titles = list(rows[0].cells)
    body = [
        [named(method), *(bold(cell.text) if cell.best else escape(cell.text) for cell in row.cells.values())]
        for method, row in zip(methods, rows, strict=True)
    ]
    most = max(len(method.runs) for method in methods)
    notes = ["Accuracy is the mean over clients of the accuracy on their own test data of the model each is served."]
    if "own model %" in titles:
        notes.append("“Own model” is what a client holds right after its last local training.")
    if "after exchange %" in titles:
        notes.append("“After exchange”, “cluster”, “mixture KL” and “uniform KL” are explained under Exchanges.")
    if "downloads vs FedAsync" in titles:
        notes.append("“Downloads vs FedAsync” is what clients downloaded, as a multiple of one model per order.")
    if most > 1:
        notes.append(f"Means over up to {most} seeds; ± is the standard deviation between them.")
    if len(methods) > 1:
        notes.append("The best of a column is bold.")
    return html_table(["method", *titles], body) + f'<p class="note">{" ".join(notes)}</p>\n'


def _better_off(runs: Sequence[Run], methods: list[Method]) -> str:
    compared = [(method, shares) for method in methods if (shares := better_off(method, runs)) is not None]
    if not compared:
        return ""
    body = [[named(method), *map(percent, (s.better, s.equal, s.worse))] for method, s in compared]
    table = html_table(["method", "better %", "equal %", "worse %"], body)
    caption = "The share of clients that gain by taking part: a long coloured bar is good, dark grey is who loses."
    note = "Every client’s final accuracy against what it reaches alone (Standalone, same data, same seed)."
    return (
        f'<div class="figures"><div>{table}<p class="note">{note}</p></div>'
        + html_figure(figures.better_off_than_alone(runs), "alone", caption)
        + "</div>\n"
    )


def _figures(runs: Sequence[Run], methods: list[Method]) -> str:
    several = len(methods) > 1
    band = " The band spans the seeds." if any(len(method.runs) > 1 for method in methods) else ""
    fifth = "" if several else " Thin lines: the fifth of the clients with the slowest and the fastest devices."
    height = " Heights are scaled row by row." if several else ""
    plots: list[tuple[Callable[[Sequence[Run]], Figure], str, str]] = [
        (
            figures.accuracy_over_time,
            "time",
            f"Accuracy against virtual time: the sooner a line rises, the less its clients wait.{band}{fifth}",
        ),
        (
            figures.accuracy_over_updates,
            "updates",
            f"Accuracy against updates: how much each update is worth, whatever time it took.{band}{fifth}",
        ),
        (
            figures.per_client_spread,
            "spread",
            "Clients sorted by final accuracy: the left end shows who is left behind, a flat line treats all alike.",
        ),
        (
            figures.fifths,
            "fifths",
            "Slow against fast devices: a gap between the two bars means that slow clients pay for being slow.",
        ),
        (
            figures.staleness,
            "staleness",
            f"How old the model was that an update came from: a long tail to the right means old news.{height}",
        ),
        (
            figures.bytes_over_time,
            "bytes",
            "Traffic so far, summed over clients: compare the slopes, solid for up and dashed for down.",
        ),
    ]
    if with_traffic(runs):
        plots.append((traffic_rate, "rate", traffic_caption(runs)))
    if any(np.any(idle_by_speed(method) > 0) for method in methods):
        whole = " The height of a strip is 100 %." if several else ""
        plots.append(
            (
                idle_shares,
                "idle",
                "The share of its time in which a client has nothing to do: bars that grow to the right are fast "
                f"devices that wait for slow ones.{whole}",
            )
        )
    if any(run.config.get("target") is not None for run in runs):
        plots.append(
            (
                figures.time_to_target,
                "target",
                "Virtual time until the mean accuracy first reached the target: shorter is better.",
            )
        )
    drawn = (html_figure(draw(runs), name, caption) for draw, name, caption in plots)
    return f'<div class="figures">{"".join(drawn)}</div>\n'


def _clusters(runs: Sequence[Run], methods: list[Method]) -> str:
    """How well the clusters fit the true groups, then for each method the clusters of its first seed that has some, or
    of a method that never split how alike it found the clients of its first seed."""
    fit = ""
    if any(map(clusters.fits, methods)):
        purity = (
            "Purity: the share of clients in the largest true group of their cluster. At 1, no cluster mixes groups."
        )
        ari = "Adjusted Rand index: at 1 the clusters are the true groups, at 0 they fit no better than chance."
        fit = (
            '<div class="figures">'
            + html_figure(clusters.fit_over_time(runs, "purity", "purity"), "purity", purity)
            + html_figure(clusters.fit_over_time(runs, "ari", "adjusted Rand index"), "ari", ari)
            + "</div>\n"
        )
    shown = []
    for method in methods:
        clustered = [(run, _clusters_of) for run in method.runs if run.has_clusters()]
        whole = [(run, _never_split) for run in method.runs if run.similarity is not None and not run.splits]
        shown += [(method, run, show) for run, show in [*clustered, *whole][:1]]
    return fit + "".join(
        f"<h3>{named(method)}, seed {escape(as_text(run.seed))}</h3>\n{show(method, run, place)}"
        for place, (method, run, show) in enumerate(shown[:TIMELINES])
    )


def _clusters_of(method: Method, run: Run, place: int) -> str:
    if run.splits and not run.regroupings:
        over_time, caption = clusters.cluster_tree(run, method.colour), _tree_caption(run)
    else:
        over_time, caption = clusters.cluster_sizes(run, method.colour), clusters.sizes_caption(run)
    has_groups = len(run.per_client("per_client_group", -1)) > 0
    colours = " Colours are the clients’ true groups" if has_groups else ""
    if has_groups:
        colours += "; after a drift they change at the next evaluation." if group_changes(run) else "."
    largest = ", in the colour of its largest true group" if has_groups else ""
    plots = [
        (
            clusters.similarity(run, method.colour),
            "similarity",
            "How alike the clients are, as the method knows it: bright squares along the diagonal are clusters whose "
            "clients agree. Numbers are clusters.",
        ),
        (clusters.accuracy_per_cluster_over_time(run, method.colour), "courses", _courses_caption(run)),
        (
            clusters.accuracy_per_cluster(run, method.colour),
            "ends",
            f"Final accuracy of each cluster{largest}: the mean over its clients, and a line from worst to best.",
        ),
    ]
    drawn = (html_figure(figure, f"{name}{place}", text) for figure, name, text in plots if figure is not None)
    return (
        html_figure(over_time, f"clusters{place}", caption + colours, wide=True)
        + f'<div class="figures">{"".join(drawn)}</div>\n'
    )


def _tree_caption(run: Run) -> str:
    caption = (
        "One band per cluster, from its beginning to its end, as thick as it has clients at its end. A dashed line "
        "marks a split, with the figures that decided it."
    )
    if has_joiners(lineage(run)):
        caption += (
            " A client without a cluster yet (a newcomer) counts in the largest one, but in no split: a band may have "
            "more clients at its end than at the split that began it."
        )
    return caption


def _courses_caption(run: Run) -> str:
    shown = clusters.clusters_over_time(run)
    if len(shown) < sum(not cluster.parts for cluster in lineage(run).values()):
        return "Accuracy of each cluster that there is at the end."
    if any(cluster.parts for cluster in shown.values()):
        return "Accuracy of each cluster while it lasted; thin lines are clusters that split."
    return f"Accuracy of each cluster{' that did not split,' if run.splits else ''} while it lasted."


def _never_split(method: Method, run: Run, place: int) -> str:
    assert run.similarity is not None
    share = percent(clusters.share_compared(run.similarity))
    note = f'<p class="note">{escape(method.label)} never split; {share} % of the pairs of clients were compared.</p>\n'
    figure = clusters.similarity(run, method.colour)
    if figure is None:
        return note
    caption = "How alike the clients are, as the method knows it: bright where two agree."
    return f'{note}<div class="figures">{html_figure(figure, f"similarity{place}", caption)}</div>\n'


def _timelines(methods: list[Method]) -> str:
    caption = (
        "one row per client, one bar per update from dispatch to arrival, in alternating shades; gaps are waiting, "
        "or training that the end of the run cut off."
    )
    drawn = (
        html_figure(
            figures.timeline(method.runs[0], method.colour),
            f"timeline{i}",
            f"{method.label}, seed {method.runs[0].seed}: {caption}{_more(method.runs[0])}",
            wide=True,
        )
        for i, method in enumerate(methods[:TIMELINES])
        if method.runs[0].update_log
    )
    return "".join(drawn)


def _more(run: Run) -> str:
    """What else a timeline shows."""
    held = " Thin and light is the time in which a client holds its model, before it trains it."
    asked = any("asked" in row for row in run.update_log)
    return (held if asked else "") + (_multicasts(run) if run.refreshes else "")


def _multicasts(run: Run) -> str:
    return (
        " A triangle is a refresh, a model sent to a client in training; a thin line joins those that were sent "
        "together (broadcast or multicast), and a triangle on its own reached one client only, of those shown. "
        f"Broadcasts or multicasts in the whole run: {run.multicasts:,}; refreshes: {run.refreshes:,}."
    )


def _settings(methods: list[Method]) -> str:
    """What all methods share once, then what is particular to each; a setting in which they differ is highlighted."""
    of_methods = _shown_settings(methods)
    of_world = [{key: text for key, text in s.items() if not key.startswith("parameters.")} for s in of_methods]
    different = differing(of_world)
    shared = "".join(
        f"<div><dt>{escape(plain_name(key))}</dt><dd>{escape(text)}</dd></div>"
        for key, text in of_world[0].items()
        if key not in different and text
    )
    body = []
    for method, mine in zip(methods, of_methods, strict=True):
        parameters = ", ".join(
            f"{plain_name(key)} {text or 'none'}" for key, text in mine.items() if key.startswith("parameters.")
        )
        seeds = ", ".join(as_text(run.seed) for run in method.runs)
        values = [f"<mark>{escape(mine.get(key) or 'none')}</mark>" for key in different]
        body.append([named(method), escape(seeds), *values, escape(parameters or NOTHING)])
    table = html_table(["method", "seeds", *map(plain_name, different), "parameters"], body, numbers=False)
    return f'<dl class="settings">{shared}</dl>\n{table}'


def _shown_settings(methods: list[Method]) -> list[dict[str, str]]:
    """The settings of each method, files by their names, and which proxy sets its runs set aside."""
    names = file_names([run for method in methods for run in method.runs])
    return [
        {key: by_name(text, names) for key, text in (settings(method.runs[0]) | proxy_settings(method)).items()}
        for method in methods
    ]


def _every_run(methods: list[Method]) -> str:
    titles = ["method", "seed", "accuracy %", "time to target s", "updates", "client steps", "train s", "overhead s"]
    body = []
    for method in methods:
        for run in method.runs:
            numbers = [
                percent(run.figure("accuracy")),
                amount(run.figure("time_to_target")),
                _whole(run.figure("updates")),
                _whole(run.figure("client_steps")),
                amount(run.figure("train_seconds")),
                amount(run.figure("overhead_seconds")),
            ]
            digest = f"<code>{escape(as_text(run.digest)[:12]) or NOTHING}</code>"
            body.append([named(method), escape(as_text(run.seed)), *numbers, digest])
    versions = methods[0].runs[0].config.get("versions") or {}
    made_with = ", ".join(f"{name} {as_text(version)}" for name, version in versions.items())
    note = f'<p class="note">Made with {escape(made_with)}.</p>\n' if made_with else ""
    return html_table([*titles, "digest"], body) + note


def _whole(value: float) -> str:
    return NOTHING if math.isnan(value) else f"{value:,.0f}"
