"""What every client gains by taking part."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from polytempo.report.drawing.canvas import GRID, INK, SMALL, canvas, column, legend_above, name_axes, name_rows
from polytempo.report.facts.alone import Standings
from polytempo.report.facts.choosing import evenly

# Okabe and Ito's blue and vermilion, which the colour-blind tell apart, too.
VERDICTS = {1: ("#0072b2", "better off"), 0: ("#b8bec7", "equal"), -1: ("#d55e00", "worse off")}
HALF = 0.36  # the height of the highest bar, in rows
LINE = 0.03  # the height of the line that stands for no gain
MOST = 200  # bars in a row; of more clients, these are evenly chosen


def gains_over_alone(rows: Sequence[tuple[str, Standings]]) -> Figure:
    """One row per method, one bar per client, sorted by what it gains over what it has alone. All rows have one
    scale."""
    figure, axes = canvas(1.1 + 0.72 * len(rows), 2 * column())
    full = full_height([clients for _, clients in rows])
    for row, (_, clients) in enumerate(rows):
        axes.axhline(row, color=GRID, linewidth=0.8, zorder=0)
        _draw_row(axes, row, clients, full)
        better, equal, worse = clients.counts()
        axes.text(101, row, f"{better} / {equal} / {worse}", va="center", fontsize=SMALL, color=INK)
    name_rows(axes, [label for label, _ in rows])
    axes.grid(visible=False)
    axes.set_xlim(0, 100)
    name_axes(axes, "clients, sorted by what they gain (%); at the right: better off / equal / worse off")
    keys: list[Any] = [Patch(color=colour, label=name) for colour, name in VERDICTS.values()]
    if any(clients.slow.any() for _, clients in rows):
        keys.append(Line2D([], [], color=INK, marker="^", markersize=3.5, linestyle="", label="slow device"))
    legend_above(axes, keys, 2 * column())
    return figure


def full_height(rows: Sequence[Standings]) -> float:
    """The gain or loss that fills a row. One client in twenty has more: its bar is cut there, because a client with
    three test rows would make all others invisible."""
    gains = np.abs(np.concatenate([clients.gains for clients in rows]))
    common = float(np.quantile(gains, 0.95)) if len(gains) else 0.0
    return common or float(gains.max(initial=0.0)) or 1.0


def _draw_row(axes: Axes, row: int, clients: Standings, full: float) -> None:
    """Gains upwards, losses downwards; the y axis of rows points down. A client without a gain is a thin line."""
    chosen = np.lexsort((clients.verdicts, clients.gains))
    chosen = chosen[evenly(len(chosen), MOST)]
    width = 100 / max(len(chosen), 1)
    at = (np.arange(len(chosen)) + 0.5) * width
    heights = HALF * np.clip(clients.gains[chosen] / full, -1, 1)
    flat = np.abs(heights) < LINE
    bottom, drawn = np.where(flat, row + LINE / 2, row), np.where(flat, LINE, heights)
    for verdict, (colour, _) in VERDICTS.items():
        these = clients.verdicts[chosen] == verdict
        axes.bar(at[these], -drawn[these], width * 0.8, bottom=bottom[these], color=colour, linewidth=0)
    slow = clients.slow[chosen]
    style: dict[str, Any] = {"linestyle": "", "marker": "^", "markersize": 3.5 if len(chosen) <= 60 else 2.5}
    axes.plot(at[slow], row + np.maximum(-drawn, 0)[slow] + 0.1, color=INK, markeredgewidth=0, **style)
