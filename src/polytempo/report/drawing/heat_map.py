"""A heat map of a number over two settings."""

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from polytempo.report.drawing.canvas import INK, SMALL, TEXT, canvas, name_axes, plain
from polytempo.report.drawing.colours import ink_on
from polytempo.report.drawing.matrices import UNKNOWN

MAP = "Blues"
LARGEST = 12  # rows or columns up to which the numbers stand in the map


def heat_map(
    percents: np.ndarray,
    rows: tuple[str, Sequence[str]],
    columns: tuple[str, Sequence[str]],
    chosen: tuple[int, int] | None,
    title: str,
) -> Figure:
    """Percentages as colours, NaN as grey with a dash; rows and columns have a name and a text each. The chosen one is
    framed."""
    width, height = 2.2 + 0.75 * len(columns[1]), 1.7 + 0.45 * len(rows[1])
    figure, axes = canvas(min(max(height, 2.4), 9.0), min(max(width, 4.2), 11.0))
    axes.grid(visible=False)
    known = percents[~np.isnan(percents)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    colours = mpl.colormaps[MAP].with_extremes(bad=UNKNOWN)
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    image = axes.imshow(np.ma.masked_invalid(percents), cmap=colours, vmin=low, vmax=high, aspect="auto")
    axes.set_xticks(range(len(columns[1])), [plain(text, 16) for text in columns[1]])
    axes.set_yticks(range(len(rows[1])), [plain(text, 16) for text in rows[1]])
    if max(percents.shape) <= LARGEST:
        _write(axes, percents, (low, high))
    if chosen is not None:
        corner = (chosen[1] - 0.5, chosen[0] - 0.5)
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="#d55e00", linewidth=2.2, clip_on=False, zorder=3))
    name_axes(axes, columns[0], rows[0])
    axes.set_title(title, fontsize=TEXT, color=INK, loc="left")
    bar = figure.colorbar(image, ax=axes, shrink=0.9)
    bar.outline.set_visible(False)  # type: ignore[operator]
    bar.ax.tick_params(labelsize=SMALL, colors=INK, length=0)
    return figure


def _write(axes: Axes, percents: np.ndarray, ends: tuple[float, float]) -> None:
    colours = mpl.colormaps[MAP]
    for (row, column), value in np.ndenumerate(percents):
        shade = UNKNOWN if np.isnan(value) else to_hex(colours((value - ends[0]) / (ends[1] - ends[0])))
        text = "–" if np.isnan(value) else f"{value:.1f}"
        axes.text(column, row, text, ha="center", va="center", fontsize=SMALL, color=ink_on(shade))
