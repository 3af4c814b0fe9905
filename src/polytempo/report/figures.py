"""Figures by name: those of the report, one by one, for notebooks and papers."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from polytempo.core.errors import UserError
from polytempo.report.drawing import figures
from polytempo.report.drawing.canvas import COLUMN, columns_of, save
from polytempo.report.facts.runs import Runs
from polytempo.report.page import SECTIONS
from polytempo.report.run import Run
from polytempo.report.sections.markup import Drawing
from polytempo_client.imports import unknown

SINGLE, DOUBLE = 3.5, 7.16  # inches: a column of a paper, and both columns with the gap between them
WIDTHS = {"page": COLUMN, "single": SINGLE, "double": DOUBLE}
FORMATS = ("pdf", "svg", "png")
OVERVIEW = "overview"


def kinds(runs: Sequence[Run]) -> list[str]:
    """The names of the figures that these runs have something to show in."""
    single = [OVERVIEW] if len(runs) == 1 else []
    return [*single, *(drawing.name for drawing in drawings(Runs.of(runs)))]


def plot(runs: Sequence[Run], kind: str, path: Path | str | None = None, width: str = "page") -> Figure:
    """The figure of this name, saved if a path is given: as wide as on the page, as one column of a paper, or as two.
    What is wide on the page takes two columns of a paper in any case."""
    known = {drawing.name: drawing for drawing in drawings(Runs.of(runs))}
    if kind == OVERVIEW and len(runs) == 1:
        known[OVERVIEW] = Drawing(OVERVIEW, lambda: figures.overview(runs[0]), "", wide=True)
    if kind not in known:
        raise UserError(unknown("kind of figure", kind, known))
    figure = _drawn(known[kind], width)
    if path is not None:
        save(figure, Path(path))
    return figure


def save_figures(
    runs: Sequence[Run],
    directory: Path,
    form: str = "pdf",
    width: str = "single",
    graph_at: Sequence[float] = (),
) -> list[Path]:
    """Save every figure of the report on these runs as a file of its own, named as the figure."""
    if form not in FORMATS:
        raise UserError(unknown("format", form, FORMATS))
    paths = []
    for drawing in drawings(Runs.of(runs, graph_at)):
        paths.append(directory / f"{drawing.name}.{form}")
        save(_drawn(drawing, width), paths[-1])
    return paths


def drawings(runs: Runs) -> list[Drawing]:
    """The figures of the report, in order."""
    return [drawing for section in SECTIONS for drawing in section(runs).drawings()]


def _drawn(drawing: Drawing, width: str) -> Figure:
    if width not in WIDTHS:
        raise UserError(unknown("width", width, WIDTHS))
    with columns_of(DOUBLE / 2 if drawing.wide and width != "page" else WIDTHS[width]):
        return drawing.draw()
