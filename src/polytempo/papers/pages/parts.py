"""Pages have parts that are made, between markers, and prose around them that people write.

    <!-- made: claims casa -->
    ...
    <!-- end of claims casa -->

Prose about earlier, smaller set-ups stands between ``<!-- until BENCH TABLE -->`` and ``<!-- end until -->``. It is
taken out when that table has records of its own."""

import re
from collections.abc import Callable

from polytempo.core.errors import UserError

MADE = re.compile(r"<!-- made: (?P<name>[^\n]*?) -->\n(?P<text>.*?)<!-- end of (?P=name) -->\n", re.DOTALL)
EARLIER = "## 0.2.0, smaller set-ups\n"
"""The last section of a page that has such prose."""
UNTIL = re.compile(r"<!-- until (?P<bench>\S+) (?P<table>\S+) -->\n.*?<!-- end until -->\n\n?", re.DOTALL)


def with_parts(page: str, make: Callable[[str], str]) -> str:
    """The page with its parts made anew. ``make`` gets what stands in the marker."""
    begun, whole = page.count("<!-- made: "), len(MADE.findall(page))
    if begun != whole:
        raise UserError(f"{begun} parts of a page begin, and {whole} end. Expected <!-- end of NAME --> after each.")

    def filled(found: re.Match[str]) -> str:
        name = found["name"]
        return f"<!-- made: {name} -->\n\n{make(name).strip()}\n\n<!-- end of {name} -->\n"

    return MADE.sub(filled, page)


def without_superseded(page: str, is_measured: Callable[[str, str], bool]) -> str:
    """The page without the prose about tables that have been measured since."""
    page = UNTIL.sub(lambda found: "" if is_measured(found["bench"], found["table"]) else found[0], page)
    before, _, earlier = page.partition(EARLIER)
    return page if UNTIL.search(earlier) else before.rstrip() + "\n"
