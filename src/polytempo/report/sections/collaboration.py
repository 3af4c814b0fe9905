"""The report's section on collaboration: who learns from whom at some times, as heat map, network and figures."""

from collections.abc import Sequence
from html import escape

import numpy as np

from polytempo.core.errors import UserError
from polytempo.report.drawing.collaboration import EDGES, heat_maps, known_groups, networks
from polytempo.report.drawing.matrices import square_size
from polytempo.report.facts.collaboration import Graph, figures_of
from polytempo.report.facts.contenders import Method, as_text
from polytempo.report.run import Run
from polytempo.report.sections.markup import html_figure, html_table, named
from polytempo.report.table import NOTHING, amount, percent

DRAWN = 300  # clients in a network: with more it would be one blot


def collaboration_section(methods: Sequence[Method], most: int, times: Sequence[float] = ()) -> str:
    """For the first ``most`` methods that have collaboration graphs, those of the first seed that has some, at these
    virtual times or, without any, at the beginning, in the middle and at the end."""
    of_methods = ((method, next(filter(has_graphs, method.runs), None)) for method in methods)
    shown = [(method, run) for method, run in of_methods if run is not None][:most]
    _check(times, [run for _, run in shown])
    return "".join(
        f"<h3>{named(method)}, seed {escape(as_text(run.seed))}</h3>\n"
        + _of_run(run, chosen_graphs(run, times), method.colour, place)
        for place, (method, run) in enumerate(shown)
    )


def has_graphs(run: Run) -> bool:
    """Did anybody ever know whom to learn from?"""
    return any(row["rows"] for row in run.graph_log)


def chosen_graphs(run: Run, times: Sequence[float]) -> list[Graph]:
    """The graphs at those of these times by which there was one, in order; without times the first one, the middle one
    and the last."""
    if times:
        reached = sorted(time for time in times if time >= _first(run))
        return list({graph.time: graph for graph in map(run.graph_at, reached)}.values())
    estimated = [graph for graph in run.graphs() if graph.rows]
    return [estimated[i] for i in sorted({0, (len(estimated) - 1) // 2, len(estimated) - 1})]


def _first(run: Run) -> float:
    """When the first graph with a row was seen."""
    return float(next(row["time"] for row in run.graph_log if row["rows"]))


def _check(times: Sequence[float], runs: Sequence[Run]) -> None:
    """A time at which no method has anything to show is a mistake."""
    if times and not runs:
        raise UserError("None of these runs has a collaboration graph: leave out --graph-at, or add a run of pace.")
    first = min(map(_first, runs), default=0.0)
    for time in times:
        if not time >= first:
            raise UserError(
                f"--graph-at {time:g}: there is no collaboration graph by then. Expected virtual seconds from "
                f"{first} on, the first evaluation that saw one."
            )


def _of_run(run: Run, graphs: Sequence[Graph], colour: str, place: int) -> str:
    if not graphs:
        return f'<p class="note">No graph by then: its first is of {amount(_first(run))} s.</p>\n'
    drawn = html_figure(heat_maps(run, graphs, colour), f"graphs{place}", _heat_caption(run), wide=True)
    if run.clients() <= DRAWN:
        drawn += html_figure(networks(run, graphs, colour), f"network{place}", _network_caption(run), wide=True)
    return drawn + _table(run, graphs)


def _heat_caption(run: Run) -> str:
    order = (
        "in the order of their true groups, and within them next to those with whom they share neighbours"
        if known_groups(run, np.inf) is not None
        else "next to those with whom they share neighbours at the end of the run"
    )
    caption = (
        "Who learns from whom: a row is one client’s model, its columns the weights of the others in it. Clients stand "
        f"{order}; the order is the same in all panels. What a client keeps of its own is in the column beside them. "
        "These are the weights that a row asks for; where stale updates count less, less arrives."
    )
    if square_size(run.clients()) > 1:
        size = square_size(run.clients())
        caption += f" Every dot is a mean over {size} x {size} clients."
    if run.clients() > DRAWN:
        caption += f" The network is drawn only for up to {DRAWN} clients."
    return caption


def _network_caption(run: Run) -> str:
    return (
        "The same as a network: a line joins two clients of which one gives the other more weight than its average "
        f"over all others, as thick as the larger of their two weights; at most the {EDGES} strongest. Everybody "
        "stands at the same place in all panels, near those it is joined to at the end of the run. A ring marks a slow "
        "device, which needs more than twice the median time per step."
    )


def _table(run: Run, graphs: Sequence[Graph]) -> str:
    titles = ["virtual time s", "updates", "clients with a row", "others in a row", "own weight %"]
    grouped = known_groups(run, np.inf) is not None
    titles += ["from own group %"] * grouped
    body = []
    for graph in graphs:
        figures = figures_of(graph, known_groups(run, graph.time))
        others = NOTHING if np.isnan(figures.neighbours) else f"{figures.neighbours:.1f}"
        cells = [amount(graph.time), f"{graph.updates:,}", f"{len(graph.rows):,}", others, percent(figures.own_weight)]
        body.append([*cells, *[percent(figures.within_group)] * grouped])
    note = "Means over the clients that have a row."
    if grouped:
        note += " “From own group” is the share of all others’ weight that comes from the client’s own true group."
    return html_table(titles, body) + f'<p class="note">{note}</p>\n'
