"""The ledger as a picture: a line per paper, a mark per claim."""

from collections.abc import Sequence

from polytempo.papers.claims.ledger import Entry, counts
from polytempo.papers.claims.verdicts import WORDS, Word
from polytempo.papers.pages.svg import circle, drawing, number, path, text

LABEL, STEP, LINE, RADIUS = 116, 18, 30, 6
LEGEND_STEP = 128
COLOURS: dict[Word, str] = {
    "holds": "green",
    "direction": "blue",
    "contradicted": "orange",
    "open": "faint",
    "not tested": "faint",
}


def ledger_picture(entries: Sequence[Entry]) -> str:
    """Claims of one verdict stand together, in the order of the words."""
    papers = {entry.paper.name: entry.paper for entry in entries}
    parts: list[str] = []
    longest = 0
    for row, (name, paper) in enumerate(papers.items()):
        own = [entry for entry in entries if entry.paper.name == name]
        y = 26 + LINE * row
        parts.append(text(12, y + 4, paper.title.partition(" (")[0], bold=True))
        words = [word for word, count in counts(own).items() for _ in range(count)]
        parts += [mark(word, LABEL + STEP * place, y) for place, word in enumerate(words)]
        longest = max(longest, len(words))
    bottom = 26 + LINE * len(papers) + 4
    for place, (word, count) in enumerate(counts(entries).items()):
        x = 18 + LEGEND_STEP * place
        parts += [mark(word, x, bottom), text(x + 12, bottom + 4, f"{word} {count}")]
    width = max(LABEL + STEP * longest, LEGEND_STEP * len(WORDS) + 12)
    return drawing(width, bottom + 18, "The claims of five papers, a mark for each", parts)


def mark(word: Word, x: float, y: float) -> str:
    """Its form says the verdict as well as its colour."""
    colour, r = COLOURS[word], RADIUS
    if word == "holds":
        return circle(x, y, r, colour)
    if word == "contradicted":
        low, high, left, right = (number(value) for value in (y - 5, y + 5, x - 5, x + 5))
        return path(f"M{left} {low}L{right} {high}M{left} {high}L{right} {low}", colour, width=3)
    if word == "not tested":
        return path(f"M{number(x - 4)} {number(y)}H{number(x + 4)}", colour, width=2)
    ring = circle(x, y, r - 0.5, colour, filled=False)
    if word == "open":
        return ring
    return ring + path(f"M{number(x)} {number(y - r)}A{r} {r} 0 0 0 {number(x)} {number(y + r)}Z", colour, filled=True)
