"""The report's section on exchanges: what clients that ask for a model get for their update."""

from collections.abc import Callable, Sequence
from html import escape

import numpy as np

from polytempo.report.drawing import exchanges
from polytempo.report.drawing.mixtures import (
    CLIENTS,
    STEPS,
    busiest_clients,
    estimated_against_true,
    mixture_bands,
    mixtures,
)
from polytempo.report.facts.contenders import Method, as_text, mean
from polytempo.report.run import Run
from polytempo.report.sections.markup import html_figure, html_table, named
from polytempo.report.table import NOTHING, amount, percent

DEFINITION = (
    "An exchange: a client hands in its update and is answered with its next model. “Before” is the accuracy of the "
    "model that it has just trained, “after” that of the model it is answered with, both on the client’s own test data "
    "of that moment. Figures are means over the last quarter of the exchanges."
)
MIXTURE = (
    "A client’s data are a mixture of clusters; KL(true || estimated) says how far the server’s estimate of the shares "
    "is from the true ones: 0 is exact, and an estimate is worth something if it is below that of the uniform mixture, "
    "which gives every cluster the same share."
)
CLUSTERS = "“Cluster” is the accuracy of each cluster’s model on test samples of that cluster, at the end of the run."


def exchange_section(methods: Sequence[Method], most: int) -> str:
    """What the exchanges of all methods brought, then for the first ``most`` methods that estimate mixtures how right
    the first such seed had them; nothing where no run records exchanges."""
    asked = [method for method in methods if any(run.exchange_log for run in method.runs)]
    if not asked:
        return ""
    estimating = [method for method in asked if any(len(mixtures(run)) for run in method.runs)]
    clustered = [method for method in methods if any(len(exchanges.cluster_course(run)[0]) for run in method.runs)]
    notes = [DEFINITION, *([MIXTURE] if estimating else []), *([CLUSTERS] if clustered else [])]
    table = _table(asked) + f'<p class="note">{" ".join(notes)}</p>\n'
    shown = [(method, next(run for run in method.runs if len(mixtures(run)))) for method in estimating[:most]]
    return table + _over_time(asked, estimating, clustered) + _mixtures(shown)


def _table(methods: Sequence[Method]) -> str:
    """One row per method, means over its seeds; without the columns that nobody has anything for."""
    columns: dict[str, Callable[[Method], str]] = {
        "exchanges": lambda method: f"{np.mean([len(run.exchange_log) for run in method.runs]):,.0f}",
        "before %": lambda method: percent(method.mean("accuracy_before")),
        "after %": lambda method: percent(method.mean("accuracy_after")),
        "cluster %": lambda method: percent(method.mean("cluster_accuracy")),
        "each cluster %": _each_cluster,
        "mixture KL": lambda method: amount(method.mean("mixture_kl")),
        "uniform KL": lambda method: amount(method.mean("mixture_kl_uniform")),
        "kB down per exchange": lambda method: amount(method.mean("bytes_per_exchange") / 1e3),
        "models per exchange": lambda method: amount(method.mean("downloads_ratio")),
    }
    cells = {title: [cell(method) for method in methods] for title, cell in columns.items()}
    cells = {title: column for title, column in cells.items() if any(text != NOTHING for text in column)}
    body = [[named(method), *(escape(column[row]) for column in cells.values())] for row, method in enumerate(methods)]
    return html_table(["method", *cells], body)


def _each_cluster(method: Method) -> str:
    of_runs = [np.array(run.cluster_accuracies, float) for run in method.runs if run.cluster_accuracies is not None]
    if not of_runs:
        return NOTHING
    return " · ".join(percent(mean(np.array(of_seeds))) for of_seeds in zip(*of_runs, strict=False))


def _over_time(asked: Sequence[Method], estimating: Sequence[Method], clustered: Sequence[Method]) -> str:
    seeds = any(len(method.runs) > 1 for method in asked)
    points = " Every point is the mean of successive exchanges."
    after_band = " The band spans the seeds, of “after”." if seeds else ""
    band = " The band spans the seeds." if seeds else ""
    drawn = [
        html_figure(
            exchanges.accuracy_around_exchanges(asked),
            "exchange-accuracy",
            "Accuracy before and after an exchange: a solid line above the dashed one of its colour means that the "
            f"answer is better than what the client had trained itself.{points}{after_band}",
        )
    ]
    if estimating:
        drawn.append(
            html_figure(
                exchanges.divergence_over_time(estimating),
                "exchange-kl",
                "How far the estimated mixtures are from the true ones: lower is better, and above the dashed line the "
                f"server would be nearer to the truth without estimating.{points}{band}",
            )
        )
    if clustered:
        drawn.append(
            html_figure(
                exchanges.cluster_accuracy_over_time(clustered),
                "exchange-clusters",
                "Accuracy of each cluster’s model on test samples of that cluster, thin, and their mean, thick: thin "
                "lines far apart are clusters of which some are served worse.",
            )
        )
    weighed = [method for method in asked if not np.isnan(method.mean("bytes_per_exchange"))]
    if weighed:
        drawn.append(
            html_figure(
                exchanges.weight_of_answers(weighed),
                "exchange-bytes",
                "What a client downloads per exchange: shorter is cheaper, and one model is the least that a new "
                "model can weigh.",
            )
        )
    return f'<div class="figures">{"".join(drawn)}</div>\n'


def _mixtures(shown: Sequence[tuple[Method, Run]]) -> str:
    of_methods = [f"{method.label}, seed {as_text(run.seed)}" for method, run in shown]
    bands = "".join(
        f"<h3>{named(method)}, seed {escape(as_text(run.seed))}</h3>\n"
        + html_figure(mixture_bands(run), f"mixtures{place}", _bands_caption(run), wide=True)
        for place, (method, run) in enumerate(shown)
    )
    scatters = "".join(
        html_figure(
            estimated_against_true(run),
            f"shares{place}",
            f"{label}: the shares in the last quarter of the exchanges. On the dashed line the estimate is right; "
            "above it the server believes in too much of a cluster, below it in too little. r is the correlation.",
        )
        for place, ((_, run), label) in enumerate(zip(shown, of_methods, strict=True))
    )
    return bands + (f'<div class="figures">{scatters}</div>\n' if scatters else "")


def _bands_caption(run: Run) -> str:
    found = mixtures(run)
    clients = busiest_clients(found)
    caption = (
        "What a client’s data are made of at its exchanges, above as it is and below as the server estimates it, each "
        "until the next exchange: the more the lower band looks like the upper one, the better the server knows the "
        "client."
    )
    if len(np.unique(found.clients)) > CLIENTS:
        caption += f" The {CLIENTS} clients with most exchanges are shown."
    if max(len(found.of(client)) for client in clients) > STEPS:
        caption += f" Of a client’s exchanges at most {STEPS} are shown, evenly spread."
    return caption
