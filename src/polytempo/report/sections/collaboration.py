"""The report's section on collaboration: who learns from whom at some times, as heat map, network and figures."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from polytempo.core.errors import UserError
from polytempo.report.drawing.collaboration import EDGES, heat_maps, networks
from polytempo.report.drawing.matrices import square_size
from polytempo.report.facts.collaboration import chosen_graphs, figures_of, first_time, has_graphs
from polytempo.report.facts.contenders import Contender
from polytempo.report.facts.graph import Graph
from polytempo.report.facts.lineage import known_groups
from polytempo.report.facts.numbers import NOTHING, amount, percent
from polytempo.report.facts.runs import Runs
from polytempo.report.run import Run
from polytempo.report.sections.markup import Drawing, Piece, Section, html_note, html_table, run_heading

DRAWN = 300  # clients in a network: with more it would be one blot


def section(runs: Runs) -> Section:
    """For contenders that have collaboration graphs, those of the first seed that has some, at the times that were
    asked for or, without any, at the beginning, in the middle and at the end."""
    shown = runs.first_with(has_graphs)
    _check(runs.graph_at, [run for _, run in shown])
    pieces: list[Piece] = []
    for contender, run in shown:
        pieces += [run_heading(contender, run), *_of_run(runs, contender, run)]
    return Section("Who learns from whom", pieces)


def _check(times: Sequence[float], runs: Sequence[Run]) -> None:
    """A time at which no method has anything to show is a mistake."""
    if times and not runs:
        raise UserError("None of these runs has a collaboration graph: leave out --graph-at, or add a run of pace.")
    first = min(map(first_time, runs), default=0.0)
    for time in times:
        if not time >= first:
            raise UserError(
                f"--graph-at {time:g}: there is no collaboration graph by then. Expected virtual seconds from "
                f"{first} on, the first evaluation that saw one."
            )


def _of_run(runs: Runs, contender: Contender, run: Run) -> list[Piece]:
    graphs, colour = chosen_graphs(run, runs.graph_at), contender.colour
    if not graphs:
        return [html_note(f"No graph by then: its first is of {amount(first_time(run))} s.")]
    heat = partial(heat_maps, run, graphs, colour)
    drawn = [Drawing(runs.named("graphs", contender), heat, _heat_caption(run), wide=True)]
    if run.clients() <= DRAWN:
        name, network = runs.named("network", contender), partial(networks, run, graphs, colour)
        drawn.append(Drawing(name, network, _network_caption(run), wide=True))
    return [*drawn, _table(run, graphs)]


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
    return html_table(titles, body) + html_note(note)
