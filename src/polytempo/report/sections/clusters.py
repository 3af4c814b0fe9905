"""The report's section on clusters: how well they fit the true groups, how they came about, how well each is served."""

from functools import partial
from html import escape

from polytempo.report.drawing.clusters import (
    accuracy_per_cluster,
    accuracy_per_cluster_over_time,
    fit_over_time,
    has_similarity,
    similarity,
)
from polytempo.report.drawing.sizes import cluster_sizes
from polytempo.report.drawing.tree import cluster_tree
from polytempo.report.facts.clusters import clusters_over_time, has_fit, share_compared
from polytempo.report.facts.contenders import Contender
from polytempo.report.facts.lineage import group_changes, has_joiners, lineage
from polytempo.report.facts.numbers import counted, percent
from polytempo.report.facts.runs import MOST, Runs
from polytempo.report.run import Run
from polytempo.report.sections.markup import Drawing, Piece, Section, SideBySide, html_note, run_heading

AGREEMENT = (
    "How alike the clients are, as the method knows it: bright squares along the diagonal are clusters whose clients "
    "agree. Numbers are clusters."
)


def section(runs: Runs) -> Section:
    """How well the clusters fit the true groups, then for each contender the clusters of its first seed that has some,
    or of one that never split how alike it found the clients of its first seed."""
    shown = []
    for contender in runs.contenders:
        clustered = [(run, _clusters_of) for run in contender.runs if run.has_clusters()]
        whole = [(run, _never_split) for run in contender.runs if run.similarity is not None and not run.splits]
        shown += [(contender, run, show) for run, show in [*clustered, *whole][:1]]
    pieces = _fit(runs)
    for contender, run, show in shown[:MOST]:
        pieces += [run_heading(contender, run), *show(runs, contender, run)]
    return Section("Clusters", pieces)


def _fit(runs: Runs) -> list[Piece]:
    if not any(map(has_fit, runs.contenders)):
        return []
    purity = "Purity: the share of clients in the largest true group of their cluster. At 1, no cluster mixes groups."
    ari = "Adjusted Rand index: at 1 the clusters are the true groups, at 0 they fit no better than chance."
    each = (("purity", "purity", purity), ("ari", "adjusted Rand index", ari))
    return [
        SideBySide(
            tuple(Drawing(name, partial(fit_over_time, runs.all, name, title), text) for name, title, text in each)
        )
    ]


def _clusters_of(runs: Runs, contender: Contender, run: Run) -> list[Piece]:
    if run.splits and not run.regroupings:
        over_time, caption = cluster_tree, _tree_caption(run)
    else:
        over_time, caption = cluster_sizes, _sizes_caption(run)
    has_groups = len(run.per_client("per_client_group", -1)) > 0
    colours = " Colours are the clients’ true groups" if has_groups else ""
    if has_groups:
        colours += "; after a drift they change at the next evaluation." if group_changes(run) else "."
    largest = ", in the colour of its largest true group" if has_groups else ""
    draw = partial(over_time, run, contender.colour)
    wide = Drawing(runs.named("clusters", contender), draw, caption + colours, wide=True)
    small = [
        (
            accuracy_per_cluster,
            "cluster-ends",
            f"Final accuracy of each cluster{largest}: the mean over its clients, and a line from worst to best.",
        )
    ]
    if clusters_over_time(run):
        small.insert(0, (accuracy_per_cluster_over_time, "cluster-courses", _courses_caption(run)))
    if has_similarity(run):
        small.insert(0, (similarity, "similarity", AGREEMENT))
    return [
        wide,
        SideBySide(
            tuple(
                Drawing(runs.named(name, contender), partial(draw_one, run, contender.colour), text)
                for draw_one, name, text in small
            )
        ),
    ]


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
    shown = clusters_over_time(run)
    if len(shown) < sum(not cluster.parts for cluster in lineage(run).values()):
        return "Accuracy of each cluster that there is at the end."
    if any(cluster.parts for cluster in shown.values()):
        return "Accuracy of each cluster while it lasted; thin lines are clusters that split."
    return f"Accuracy of each cluster{' that did not split,' if run.splits else ''} while it lasted."


def _never_split(runs: Runs, contender: Contender, run: Run) -> list[Piece]:
    assert run.similarity is not None
    share = percent(share_compared(run.similarity))
    note = html_note(f"{escape(contender.label)} never split; {share} % of the pairs of clients were compared.")
    if not has_similarity(run):
        return [note]
    caption = "How alike the clients are, as the method knows it: bright where two agree."
    name, draw = runs.named("similarity", contender), partial(similarity, run, contender.colour)
    return [note, SideBySide((Drawing(name, draw, caption),))]


def _sizes_caption(run: Run) -> str:
    """How to read ``cluster_sizes``."""
    caption = "The clients of each cluster at every evaluation."
    if not run.regroupings:
        return caption
    expansions, merges = (sum(row["kind"] == kind for row in run.regroupings) for kind in ("expansion", "merge"))
    return (
        f"{caption} ▲ is an expansion, in which clients of a cluster begin a new one, ▼ a merge, in which all of a "
        "cluster go over to another one and its number ends; above them, as far as there is room, from which cluster "
        "to which and how many clients, or how many there were at a time. The bands follow at the next evaluation. In "
        f"the whole run there were {counted(expansions, 'expansion')} and {counted(merges, 'merge')}."
    )
