"""The looks that all figures share, and how a figure becomes a file or a piece of a page."""

import io
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from polytempo.core.errors import UserError

TEXT, SMALL = 9.0, 7.5  # points
INK, GRID = "#24292f", "#dfe3e8"
DOTS_PER_INCH = 300  # in a bitmap
LONGEST = 44  # characters in the name of a method
COLUMN, HEIGHT = 5.0, 3.2  # inches of a figure on the page, so that text stays readable on a phone
LEGEND_LINE = 0.17  # inches
FREE_LINES = 2  # of a legend, for which every figure has room

_column = ContextVar("column", default=COLUMN)


class NotebookFigure(Figure):
    """A figure that a notebook shows also where pyplot is not loaded."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=100)
        return file.getvalue()


def column() -> float:
    """The width in inches of a figure that is one of two side by side. A wide one has twice as much."""
    return _column.get()


@contextmanager
def columns_of(inches: float) -> Iterator[None]:
    """What is drawn meanwhile fits columns of this width. Letters keep their size."""
    token = _column.set(inches)
    try:
        yield
    finally:
        _column.reset(token)


def canvas(height: float | None = None, width: float | None = None) -> tuple[Figure, Axes]:
    """An empty figure with one styled pair of axes, by default a column wide. No pyplot: figures are plain objects that
    need no display."""
    height = HEIGHT * min(column() / COLUMN, 1) if height is None else height
    figure = NotebookFigure(figsize=(width or column(), height), layout="constrained")
    return figure, styled(figure.add_subplot())


def styled(axes: Axes) -> Axes:
    """Light grid behind the data, no box, small type."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GRID)
    axes.tick_params(colors=INK, labelsize=SMALL, length=0)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    return axes


def name_axes(axes: Axes, x: str, y: str = "") -> None:
    """Label the axes, with units."""
    axes.set_xlabel(x, fontsize=SMALL + 0.5, color=INK)
    axes.set_ylabel(y, fontsize=SMALL + 0.5, color=INK)


def name_rows(axes: Axes, labels: Sequence[str]) -> None:
    """One named row per method, the first on top."""
    axes.set_yticks(range(len(labels)), [textwrap.fill(plain(label), 22) for label in labels], fontsize=SMALL)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(6))


def legend_above(axes: Axes, handles: Sequence[Artist], width: float | None = None) -> None:
    """A legend over axes of this width in inches, in as many columns as the labels leave room for, so that it never
    covers data. A figure that is laid out by itself grows for a long one."""
    figure = axes.get_figure(root=True)
    if figure is not None and figure.get_layout_engine() is not None:
        more = _lines(handles, width) - FREE_LINES
        figure.set_figheight(figure.get_figheight() + LEGEND_LINE * max(more, 0))
    axes.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=_columns(handles, width),
        fontsize=SMALL,
        labelcolor=INK,
        frameon=False,
        borderaxespad=0.2,
        handlelength=1.6,
        columnspacing=1.2,
    )


def legend_height(handles: Sequence[Artist], width: float | None = None) -> float:
    """The room that ``legend_above`` needs over axes of this width, in inches."""
    return 0.1 + LEGEND_LINE * _lines(handles, width)


def _lines(handles: Sequence[Artist], width: float | None) -> int:
    return -(-len(handles) // _columns(handles, width)) if handles else 0


def _columns(handles: Sequence[Artist], width: float | None) -> int:
    lengths = [len(str(handle.get_label())) + 6 for handle in handles]
    per_line = int(72 * (width or column()) / COLUMN)  # characters of this size across a figure, a key counted as six
    return len(handles) if sum(lengths) <= per_line else max(1, per_line // max(lengths))


def plain(label: str, longest: int = LONGEST) -> str:
    """A method's label as a figure can hold it: not too long, and not read as mathematics."""
    return (label if len(label) <= longest else label[: longest - 1] + "…").replace("$", r"\$")


def row_height(rows: int, per_row: float = 0.42) -> float:
    """The height in inches of a figure with one row per method."""
    return 0.9 + per_row * max(rows, 2)


def check_ending(path: Path) -> None:
    """Refuse a path whose ending names no format."""
    formats = Figure().canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in formats:
        raise UserError(f"cannot save a plot as {path.name}: expected one of the endings {', '.join(sorted(formats))}")


def save(figure: Figure, path: Path) -> None:
    """Save in the format that the path's ending names: letters as text in SVG and as TrueType in PDF, no date."""
    check_ending(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    dated: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "polytempo", "pdf.fonttype": 42}):
        figure.savefig(path, dpi=DOTS_PER_INCH, metadata=dated.get(path.suffix.removeprefix(".").lower()))


def inline_svg(figure: Figure, name: str) -> str:
    """The figure as an <svg> element for a page: ids begin with the name, ink and grid take the page's colours, and the
    same figure always gives the same text."""
    file = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "polytempo"}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = _bare_root(svg)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(href="|url\()#', rf"\g<1>#{name}-", svg)
    svg = re.sub(r' (d|x|y|transform)="[^"]*"', lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found.group()), svg)
    svg = re.sub(r"[ \n]*\n *", "\n", svg)
    return svg.replace(INK, "var(--ink)").replace(GRID, "var(--grid)")


def _bare_root(svg: str) -> str:
    """Leave only the viewBox on the root element: the page sets the size, and HTML knows the namespaces."""
    view = re.search(r'viewBox="[^"]*"', svg)
    assert view is not None
    return f"<svg {view.group()}>" + svg[svg.index(">") + 1 :]
