"""Who trained when: one row per client, one bar per update from dispatch to arrival, thin and light while the client
only holds its model."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Outline

from polytempo.report.drawing.canvas import INK, SMALL, canvas, column, legend_above, name_axes
from polytempo.report.facts.contenders import contenders_of
from polytempo.report.facts.speed import slowest_to_fastest, training_began
from polytempo.report.run import Row, Run

Numbers = Sequence[float] | np.ndarray

ROWS = 40
DRAWN = 1_500  # bars and marks in one plot; beyond that the eye sees a wall and the file grows
MARKERS = {"refresh": "v", "report": "D", "left": "x", "joined": ">", "drift": "*", "pull": "."}
NAMES = {"refresh": "refresh of a client in training"}
LOOKS = {"refresh": {"markersize": 5.0, "color": INK, "markeredgecolor": "white", "markeredgewidth": 0.6}}
HELD = 0.4  # how light
HELD_HEIGHT = 0.24  # in rows
_BREAK = (np.nan, np.nan)


def timeline(run: Run, colour: str | None = None) -> Figure:
    """Who trained when in one run: at most 40 clients from the slowest to the fastest, and from the start as far as the
    bars can still be told apart."""
    rows = min(run.clients(), ROWS)
    figure, axes = canvas(height=1.0 + 0.1 * max(rows, 8), width=2 * column())
    draw_timeline(axes, run, ROWS, colour, 2 * column())
    return figure


def draw_timeline(
    axes: Axes, run: Run, rows: int = ROWS, colour: str | None = None, width: float | None = None
) -> None:
    """Draw the timeline of some clients on axes of this width in inches, the slowest on top, with marks for what else
    happened to them."""
    colour = colour or contenders_of([run])[0].colour
    chosen = slowest_to_fastest(run, rows)
    row_of = {int(client): row for row, client in enumerate(chosen)}
    client, began, arrived = (run.over_updates(name) for name in ("client", "began", "time"))
    shown = np.isin(client, chosen)
    client, began, trained, arrived = client[shown], began[shown], training_began(run)[shown], arrived[shown]
    marks = [mark for mark in run.marks if mark.get("client") is None or int(mark["client"]) in row_of]
    end = max([float(run.virtual_time or 0.0), *arrived[-1:]])
    until = drawn_until(np.concatenate([began, [float(mark["time"]) for mark in marks]]), end, DRAWN)

    row = np.array([row_of[int(one)] for one in client], dtype=float)
    held = (began < trained) & (began < until)
    ends = np.minimum(trained[held], until)
    draw_bars(axes, began[held], ends, row[held], HELD_HEIGHT, color=colour, alpha=HELD)
    odd = _counted_within(client) % 2 == 1
    for which, alpha in ((~odd, 0.95), (odd, 0.5)):  # two shades, so that bars that touch can be told apart
        visible = which & (trained < until)
        draw_bars(axes, trained[visible], np.minimum(arrived[visible], until), row[visible], color=colour, alpha=alpha)
    keys = [Line2D([], [], color=colour, alpha=HELD, linewidth=2, label="holds its model")] if held.any() else []
    keys += _draw_sent_together(axes, marks, row_of, until) + _draw_marks(axes, marks, row_of, until)
    if keys:
        legend_above(axes, keys, width)

    axes.set_ylim(len(chosen) - 0.4, -0.6)
    name_clients(axes, chosen, until, end)


def name_clients(axes: Axes, chosen: np.ndarray, until: float, end: float) -> None:
    """Name the rows after their clients, and the time axis, which shows a run of length ``end`` as far as ``until``."""
    axes.set_xlim(0, until or 1.0)
    axes.set_yticks(range(len(chosen)), [str(one) for one in chosen], fontsize=5.5 if len(chosen) > 12 else SMALL)
    axes.grid(visible=False, axis="y")
    label = "client, slowest device on top" if len(chosen) > 12 else "client, slowest\ndevice on top"
    part = f", the first {until:,.4g} of {end:,.4g}" if until < end else ""
    name_axes(axes, f"virtual time (s){part}", label)


def drawn_until(times: np.ndarray, end: float, most: int) -> float:
    """Where to stop so that at most so many of the things that begin at these times are drawn."""
    return float(np.sort(times)[most]) if len(times) > most else end


def _counted_within(client: np.ndarray) -> np.ndarray:
    """For every update, how many its client had before."""
    order = np.argsort(client, kind="stable")
    ordered = client[order]
    first = np.searchsorted(ordered, ordered)
    count = np.empty(len(client), dtype=int)
    count[order] = np.arange(len(client)) - first
    return count


def draw_bars(axes: Axes, start: Numbers, end: Numbers, row: Numbers, height: float = 0.72, **looks: Any) -> None:
    """All bars as one path: a collection would write every bar as an element of its own."""
    if not len(start):
        return
    top, bottom = np.asarray(row) - height / 2, np.asarray(row) + height / 2
    corners = np.stack([start, top, end, top, end, bottom, start, bottom, start, top], axis=1).reshape(-1, 2)
    codes = [Outline.MOVETO, Outline.LINETO, Outline.LINETO, Outline.LINETO, Outline.CLOSEPOLY] * len(start)
    axes.add_patch(PathPatch(Outline(corners, codes), linewidth=0, **looks))


def _draw_sent_together(axes: Axes, marks: Sequence[Row], row_of: dict[int, int], until: float) -> list[Line2D]:
    """A thin line through the refreshes that were ordered at the same moment, and its key, if there are any."""
    sent: dict[float, list[tuple[int, float]]] = {}
    for mark in marks:
        if mark["kind"] == "refresh" and mark["time"] <= until:
            reached = sent.setdefault(mark.get("ordered", mark["time"]), [])
            reached.append((row_of[int(mark["client"])], mark["time"]))
    broken = [point for reached in sent.values() if len(reached) > 1 for point in (*sorted(reached), _BREAK)]
    looks: dict[str, Any] = {"color": INK, "linewidth": 0.7}
    axes.plot([time for _, time in broken], [row for row, _ in broken], **looks)
    return [Line2D([], [], label="sent together (broadcast)", **looks)] if broken else []


def _draw_marks(axes: Axes, marks: Sequence[Row], row_of: dict[int, int], until: float) -> list[Line2D]:
    """A marker for everything else that happened, and the keys of the kinds that there are."""
    keys = []
    for kind, marker in MARKERS.items():
        drawn = [mark for mark in marks if mark["kind"] == kind and mark["time"] <= until]
        if not drawn:
            continue
        style: dict[str, Any] = {
            "linestyle": "",
            "marker": marker,
            **LOOKS.get(kind, {"markersize": 3.5, "color": INK, "markeredgewidth": 0.8}),
        }
        own = [mark for mark in drawn if mark.get("client") is not None]
        axes.plot([mark["time"] for mark in own], [row_of[int(mark["client"])] for mark in own], **style)
        for mark in drawn:
            if mark.get("client") is None:  # it happened to everybody
                axes.axvline(mark["time"], color=INK, linewidth=0.6, dashes=(2, 2))
        keys.append(Line2D([], [], label=NAMES.get(kind, kind), **style))
    return keys
