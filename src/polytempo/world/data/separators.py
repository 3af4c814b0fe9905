"""Which character separates the columns of a table in a text file."""

import csv
from collections.abc import Iterable
from itertools import islice

SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars", ",": "commas"}
"""Each with its name. The comma is the last: in numbers it may be a decimal comma."""
LOOKED_AT = 50  # rows


def separated(text: Iterable[str]) -> tuple[list[list[str]], str]:
    """The rows of the text without empty ones, and the name of what separates their columns: of the separators that
    give all of the first rows equally many columns the one that gives most; if none does, the one that gives the first
    row most."""
    lines = [line for line in text if line.strip()]
    separator = max(SEPARATORS, key=lambda one: _columns(lines, one))
    return [row for row in csv.reader(lines, delimiter=separator) if row], SEPARATORS[separator]


def _columns(lines: list[str], separator: str) -> tuple[bool, int]:
    """Are there several columns, as many in all of the first rows, and how many has the first."""
    counts = [len(row) for row in islice(csv.reader(lines, delimiter=separator), LOOKED_AT) if row]
    first = counts[0] if counts else 0
    return first > 1 and len(set(counts)) == 1, first
