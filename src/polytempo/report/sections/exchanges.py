"""The report's section on exchanges: what clients that ask for a model get for their update."""

from collections.abc import Callable, Sequence
from functools import partial
from html import escape

import numpy as np

from polytempo.report.drawing import exchanges
from polytempo.report.drawing.mixtures import STEPS, estimated_against_true, mixture_bands
from polytempo.report.facts.contenders import Contender, as_text, mean
from polytempo.report.facts.exchanges import cluster_course
from polytempo.report.facts.mixtures import CLIENTS, busiest_clients, mixtures
from polytempo.report.facts.numbers import NOTHING, amount
from polytempo.report.facts.runs import Runs
from polytempo.report.facts.scales import common_scale, in_column
from polytempo.report.run import Run
from polytempo.report.sections.markup import (
    Drawing,
    Piece,
    Section,
    SideBySide,
    html_note,
    html_table,
    named,
    run_heading,
)
from polytempo.sim.result import Result

HEADING = "Exchanges"
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


def section(runs: Runs) -> Section:
    """What the exchanges of all contenders brought, then for those that estimate mixtures how right the first such seed
    had them; nothing where no run records exchanges."""
    asked = [contender for contender in runs.contenders if any(run.exchange_log for run in contender.runs)]
    if not asked:
        return Section(HEADING, [])
    estimating = [contender for contender in asked if any(len(mixtures(run)) for run in contender.runs)]
    clustered = [
        contender for contender in runs.contenders if any(len(cluster_course(run)[0]) for run in contender.runs)
    ]
    notes = [DEFINITION, *([MIXTURE] if estimating else []), *([CLUSTERS] if clustered else [])]
    table = [_table(asked), html_note(" ".join(notes))]
    over_time = SideBySide(tuple(_over_time(asked, estimating, clustered)))
    return Section(HEADING, [*table, over_time, *_mixtures(runs)])


def _table(contenders: Sequence[Contender]) -> str:
    """One row per method, means over its seeds; without the columns that nobody has anything for."""
    scale = common_scale([run for contender in contenders for run in contender.runs])
    columns: dict[str, Callable[[Contender], str]] = {
        "exchanges": lambda contender: f"{np.mean([len(run.exchange_log) for run in contender.runs]):,.0f}",
        f"before {scale.unit}": lambda contender: _score(contender, "accuracy_before"),
        f"after {scale.unit}": lambda contender: _score(contender, "accuracy_after"),
        f"cluster {scale.unit}": lambda contender: _score(contender, "cluster_accuracy"),
        f"each cluster {scale.unit}": _each_cluster,
        "mixture KL": lambda contender: amount(contender.mean("mixture_kl")),
        "uniform KL": lambda contender: amount(contender.mean("mixture_kl_uniform")),
        "kB down per exchange": lambda contender: amount(contender.mean("bytes_per_exchange") / 1e3),
        "models per exchange": lambda contender: amount(contender.mean("downloads_ratio")),
    }
    cells = {title: [cell(contender) for contender in contenders] for title, cell in columns.items()}
    cells = {title: column for title, column in cells.items() if any(text != NOTHING for text in column)}
    body = [
        [named(contender), *(escape(column[row]) for column in cells.values())]
        for row, contender in enumerate(contenders)
    ]
    return html_table(["method", *cells], body)


def _score(contender: Contender, figure: str) -> str:
    return _in_column(contender, contender.mean(figure))


def _in_column(contender: Contender, value: float) -> str:
    return in_column(Result.accuracy, contender.runs[0].scale, value)


def _each_cluster(contender: Contender) -> str:
    of_runs = [np.array(run.cluster_accuracies, float) for run in contender.runs if run.cluster_accuracies is not None]
    if not of_runs:
        return NOTHING
    return " · ".join(_in_column(contender, mean(np.array(of_seeds))) for of_seeds in zip(*of_runs, strict=False))


def _over_time(
    asked: Sequence[Contender], estimating: Sequence[Contender], clustered: Sequence[Contender]
) -> list[Drawing]:
    seeds = any(len(contender.runs) > 1 for contender in asked)
    points = " Every point is the mean of successive exchanges."
    after_band = " The band spans the seeds, of “after”." if seeds else ""
    band = " The band spans the seeds." if seeds else ""
    drawn = [
        Drawing(
            "exchange-accuracy",
            partial(exchanges.accuracy_around_exchanges, asked),
            "Accuracy before and after an exchange: a solid line above the dashed one of its colour means that the "
            f"answer is better than what the client had trained itself.{points}{after_band}",
        )
    ]
    if estimating:
        drawn.append(
            Drawing(
                "exchange-kl",
                partial(exchanges.divergence_over_time, estimating),
                "How far the estimated mixtures are from the true ones: lower is better, and above the dashed line the "
                f"server would be nearer to the truth without estimating.{points}{band}",
            )
        )
    if clustered:
        drawn.append(
            Drawing(
                "exchange-clusters",
                partial(exchanges.cluster_accuracy_over_time, clustered),
                "Accuracy of each cluster’s model on test samples of that cluster, thin, and their mean, thick: thin "
                "lines far apart are clusters of which some are served worse.",
            )
        )
    weighed = [contender for contender in asked if not np.isnan(contender.mean("bytes_per_exchange"))]
    if weighed:
        drawn.append(
            Drawing(
                "exchange-bytes",
                partial(exchanges.weight_of_answers, weighed),
                "What a client downloads per exchange: shorter is cheaper, and one model is the least that a new "
                "model can weigh.",
            )
        )
    return drawn


def _mixtures(runs: Runs) -> list[Piece]:
    shown = runs.first_with(lambda run: len(mixtures(run)))
    pieces: list[Piece] = []
    for contender, run in shown:
        name = runs.named("mixtures", contender)
        bands = Drawing(name, partial(mixture_bands, run), _bands_caption(run), wide=True)
        pieces += [run_heading(contender, run), bands]
    scatters = [
        Drawing(
            runs.named("shares", contender),
            partial(estimated_against_true, run),
            f"{contender.label}, seed {as_text(run.seed)}: the shares in the last quarter of the exchanges. On the "
            "dashed line the estimate is right; above it the server believes in too much of a cluster, below it in too "
            "little. r is the correlation.",
        )
        for contender, run in shown
    ]
    return [*pieces, SideBySide(tuple(scatters))] if scatters else pieces


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
