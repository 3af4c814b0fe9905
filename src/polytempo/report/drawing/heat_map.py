"""A heat map of a number over two settings."""

from collections.abc import Callable, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from polytempo.learn.metrics import Scale
from polytempo.report.drawing.canvas import INK, SMALL, TEXT, canvas, name_axes, plain
from polytempo.report.drawing.colours import ink_on
from polytempo.report.drawing.matrices import UNKNOWN
from polytempo.report.facts.numbers import NOTHING

MAP = "Blues"
LARGEST = 12  # rows or columns up to which the numbers stand in the map


def heat_map(
    values: np.ndarray,
    rows: tuple[str, Sequence[str]],
    columns: tuple[str, Sequence[str]],
    chosen: tuple[int, int] | None,
    title: str,
    scale: Scale,
) -> Figure:
    """Numbers as colours, the darker the better, NaN as grey with a dash; rows and columns have a name and a text each.
    The chosen one is framed."""
    width, height = 2.2 + 0.75 * len(columns[1]), 1.7 + 0.45 * len(rows[1])
    figure, axes = canvas(min(max(height, 2.4), 9.0), min(max(width, 4.2), 11.0))
    axes.grid(visible=False)
    known = values[~np.isnan(values)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    colours = mpl.colormaps[MAP if scale.higher_is_better else f"{MAP}_r"].with_extremes(bad=UNKNOWN)
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    image = axes.imshow(np.ma.masked_invalid(values), cmap=colours, vmin=low, vmax=high, aspect="auto")
    axes.set_xticks(range(len(columns[1])), [plain(text, 16) for text in columns[1]])
    axes.set_yticks(range(len(rows[1])), [plain(text, 16) for text in rows[1]])
    if max(values.shape) <= LARGEST:
        _write(axes, values, lambda value: to_hex(colours((value - low) / (high - low))), scale)
    if chosen is not None:
        corner = (chosen[1] - 0.5, chosen[0] - 0.5)
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="#d55e00", linewidth=2.2, clip_on=False, zorder=3))
    name_axes(axes, columns[0], rows[0])
    axes.set_title(title, fontsize=TEXT, color=INK, loc="left")
    bar = figure.colorbar(image, ax=axes, shrink=0.9)
    bar.outline.set_visible(False)  # type: ignore[operator]
    bar.ax.tick_params(labelsize=SMALL, colors=INK, length=0)
    return figure


def _write(axes: Axes, values: np.ndarray, colour_of: Callable[[float], str], scale: Scale) -> None:
    for (row, column), value in np.ndenumerate(values):
        shade = UNKNOWN if np.isnan(value) else colour_of(value)
        text = NOTHING if np.isnan(value) else scale.number(value / scale.factor)
        axes.text(column, row, text, ha="center", va="center", fontsize=SMALL, color=ink_on(shade))
