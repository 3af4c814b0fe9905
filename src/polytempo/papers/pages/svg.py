"""Small SVG drawings: readable on light and on dark pages, without colours too, and of the same bytes wherever they are
made."""

from collections.abc import Iterable, Mapping
from html import escape

LIGHT = {
    "ground": "#ffffff",
    "ink": "#24292f",
    "faint": "#57606a",
    "grid": "#d0d7de",
    "green": "#00795a",
    "blue": "#0072b2",
    "orange": "#c04f00",
}
DARK = {
    "ground": "#0d1117",
    "ink": "#e6edf3",
    "faint": "#9aa4ae",
    "grid": "#30363d",
    "green": "#2fbf9a",
    "blue": "#56b4e9",
    "orange": "#ff9248",
}
"""Green, blue and orange are told apart by the colour-blind."""


def drawing(width: float, height: float, title: str, parts: Iterable[str]) -> str:
    """A whole file. The ground is drawn too: a page in the other colours must not swallow the text."""
    style = f"{_rules(LIGHT)}@media(prefers-color-scheme:dark){{{_rules(DARK)}}}"
    font = 'font-family="system-ui,sans-serif" font-size="12"'
    size = f'width="{number(width)}" height="{number(height)}" viewBox="0 0 {number(width)} {number(height)}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" {font}>',
            f"<title>{escape(title)}</title>",
            f"<style>{style}</style>",
            f'<rect class="ground" width="{number(width)}" height="{number(height)}"/>',
            *parts,
            "</svg>\n",
        ]
    )


def text(x: float, y: float, words: str, colour: str = "ink", anchor: str = "start", bold: bool = False) -> str:
    where = "" if anchor == "start" else f' text-anchor="{anchor}"'
    weight = ' font-weight="bold"' if bold else ""
    return f'<text class="{colour}" x="{number(x)}" y="{number(y)}"{where}{weight}>{escape(words)}</text>'


def circle(x: float, y: float, radius: float, colour: str, filled: bool = True) -> str:
    kind = colour if filled else f"{colour}-line"
    return f'<circle class="{kind}" cx="{number(x)}" cy="{number(y)}" r="{number(radius)}"/>'


def path(steps: str, colour: str, width: float = 1.5, filled: bool = False) -> str:
    """A line, or with ``filled`` a shape."""
    if filled:
        return f'<path class="{colour}" d="{steps}"/>'
    return f'<path class="{colour}-line" stroke-width="{number(width)}" d="{steps}"/>'


def number(value: float) -> str:
    """As short as it stays exact to a tenth of a pixel."""
    return f"{round(value, 1):g}"


def _rules(colours: Mapping[str, str]) -> str:
    return "".join(
        f".{name}{{fill:{colour}}}.{name}-line{{fill:none;stroke:{colour}}}" for name, colour in colours.items()
    )
