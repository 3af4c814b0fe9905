"""``polytempo claims``."""

import json
from collections.abc import Sequence
from typing import Annotated

import rich.box
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from polytempo.papers.claims.ledger import Entry, counts, ledger, open_work
from polytempo.papers.claims.verdicts import Word
from polytempo.papers.claims.wording import literal_words, ours_words, verdict_words
from polytempo.report.facts.numbers import counted

STYLES: dict[Word, str] = {
    "holds": "green",
    "direction": "cyan",
    "contradicted": "red",
    "open": "",
    "not tested": "dim",
}


def claims(
    paper: Annotated[
        str | None, typer.Option(help="only the claims of casa, fedcompass, pace, echopfl or cdfl")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object per claim, in a list")] = False,
) -> None:
    """What the five papers claim, and what the records that come with the package say of it."""
    entries = ledger(paper)
    if as_json:
        print(json.dumps([entry.figures() for entry in entries]))
        return
    console = Console()
    for name in dict.fromkeys(entry.paper.name for entry in entries):
        console.print(_table([entry for entry in entries if entry.paper.name == name]))
    console.print(_summary(entries), highlight=False)
    work = open_work(entries)
    if work:
        console.print("\nWhat would decide the open ones. What is recorded is not run again:", highlight=False)
        for command, waiting in work:
            console.print(f"  {command}", soft_wrap=True, highlight=False, markup=False)
            console.print(f"    {', '.join(waiting)}", style="dim", highlight=False)


def _table(entries: Sequence[Entry]) -> Table:
    table = Table(title=entries[0].paper.title, title_justify="left", box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("verdict", no_wrap=True)
    table.add_column("claim", ratio=5)
    table.add_column("the paper", ratio=2)
    table.add_column("ours [95 % interval]", ratio=3)
    for entry in entries:
        table.add_row(
            Text(verdict_words(entry.verdict), style=STYLES[entry.verdict.word]),
            Text.assemble(entry.claim.says, "\n", (f"{entry.claim.id}, {entry.claim.section}", "dim")),
            Text(entry.claim.figure),
            Text("\n".join(filter(None, _ours(entry)))),
        )
    return table


def _ours(entry: Entry) -> tuple[str, ...]:
    return ours_words(entry, entry.verdict), entry.verdict.why, literal_words(entry), entry.claim.cause


def _summary(entries: Sequence[Entry]) -> str:
    found = ", ".join(f"{number} {word}" for word, number in counts(entries).items())
    return f"{counted(len(entries), 'claim')}: {found}."
