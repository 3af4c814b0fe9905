"""The pieces of HTML that a section is made of."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from matplotlib.figure import Figure

from polytempo.report.drawing.canvas import inline_svg
from polytempo.report.facts.contenders import Contender, as_text
from polytempo.report.run import Run


@dataclass(frozen=True)
class Drawing:
    """A figure of the page, drawn when it is wanted. A wide one takes the whole width of the page."""

    name: str
    """No other figure of the page has it: its ids on the page begin with it, and it is the name of its file."""
    draw: Callable[[], Figure]
    caption: str
    wide: bool = False

    def html(self) -> str:
        width = ' class="wide"' if self.wide else ""
        label = f'<svg role="img" aria-label="{escape(self.caption)}" '
        svg = inline_svg(self.draw(), self.name).replace("<svg ", label, 1)
        caption = f"<figcaption>{escape(self.caption)}</figcaption>"
        return f'<figure{width}><div class="scroll">{svg}</div>{caption}</figure>\n'


@dataclass(frozen=True)
class SideBySide:
    """Figures in as many columns as the page has room for."""

    drawings: tuple[Drawing, ...]

    def html(self) -> str:
        return f'<div class="figures">{"".join(drawing.html() for drawing in self.drawings)}</div>\n'


Piece = str | Drawing | SideBySide
"""Text is HTML."""


@dataclass(frozen=True)
class Section:
    """A part of the page: a heading, which is text, and what stands under it. A section without pieces is left out."""

    heading: str
    pieces: Sequence[Piece]

    def html(self) -> str:
        content = "".join(piece if isinstance(piece, str) else piece.html() for piece in self.pieces)
        return f"<section>\n<h2>{escape(self.heading)}</h2>\n{content}</section>\n" if content else ""

    def drawings(self) -> list[Drawing]:
        """The figures among the pieces, in order."""
        of_pieces = [
            piece.drawings if isinstance(piece, SideBySide) else (piece,)
            for piece in self.pieces
            if not isinstance(piece, str)
        ]
        return [drawing for drawings in of_pieces for drawing in drawings]


def html_table(
    titles: Sequence[str], body: Iterable[Sequence[str]], numbers: bool = True, words: Collection[str] = ()
) -> str:
    """A table from titles that are text and cells that are HTML; wider than the screen, it scrolls by itself. In a
    table of numbers, ``words`` are the titles of the columns that hold text."""
    kinds = [' class="words"' if title in words else "" for title in titles]
    heads = [
        ' class="long"' if not kind and len(title) > 16 else kind for title, kind in zip(titles, kinds, strict=True)
    ]
    head = "".join(f"<th{kind}>{escape(title)}</th>" for title, kind in zip(titles, heads, strict=True))
    rows = "".join(f"<tr><th>{row[0]}</th>{_cells(row[1:], kinds[1:])}</tr>\n" for row in body)
    kind = ' class="numbers"' if numbers else ""
    return f'<div class="scroll"><table{kind}><thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table></div>\n'


def _cells(cells: Sequence[str], kinds: Sequence[str]) -> str:
    return "".join(f"<td{kind}>{cell}</td>" for cell, kind in zip(cells, kinds, strict=True))


def html_note(text: str) -> str:
    """A remark under a table or a heading; the text is HTML."""
    return f'<p class="note">{text}</p>\n'


def named(contender: Contender) -> str:
    """A contender's name behind a dot in its colour."""
    return f'<span class="dot" style="background:{contender.colour}"></span>{escape(contender.label)}'


def run_heading(contender: Contender, run: Run) -> str:
    """The heading over what is shown of one run."""
    return f"<h3>{named(contender)}, seed {escape(as_text(run.seed))}</h3>\n"


def bold(text: str) -> str:
    """Text that is to be seen first."""
    return f"<strong>{escape(text)}</strong>"
