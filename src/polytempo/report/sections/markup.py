"""The pieces of HTML that a section is made of."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from matplotlib.figure import Figure

from polytempo.report.drawing.canvas import inline_svg
from polytempo.report.facts.contenders import Contender, as_text
from polytempo.report.run import Run


@dataclass(frozen=True)
class Section:
    """A part of the page: a heading, which is text, and what stands under it, which is HTML. A section without content
    is left out."""

    heading: str
    content: str

    def html(self) -> str:
        return f"<section>\n<h2>{escape(self.heading)}</h2>\n{self.content}</section>\n" if self.content else ""


def html_figure(figure: Figure, name: str, caption: str, wide: bool = False) -> str:
    """A figure with its caption; a wide one takes the whole width of the page."""
    width = ' class="wide"' if wide else ""
    svg = inline_svg(figure, name).replace("<svg ", f'<svg role="img" aria-label="{escape(caption)}" ', 1)
    return f'<figure{width}><div class="scroll">{svg}</div><figcaption>{escape(caption)}</figcaption></figure>\n'


def side_by_side(figures: Iterable[str]) -> str:
    """Figures in as many columns as the page has room for."""
    return f'<div class="figures">{"".join(figures)}</div>\n'


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
