"""The ledger: every claim with its verdict, and the commands that would decide those that are open."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from polytempo.core.errors import UserError
from polytempo.papers.bench import benches
from polytempo.papers.claims.claims import Claim, Claims, Paper, known_claims
from polytempo.papers.claims.verdicts import FEWEST_SEEDS, WORDS, Results, Verdict, Word
from polytempo_client.imports import unknown

MARKS: Mapping[Word, str] = {"holds": "●", "direction": "◐", "contradicted": "✕", "open": "○", "not tested": "–"}
"""One sign for each verdict, so that colours are not needed."""


class Place(NamedTuple):
    """Where the figures of some rows are."""

    bench: str
    table: str


@dataclass(frozen=True)
class Entry:
    """One claim in the ledger."""

    paper: Paper
    claim: Claim
    verdict: Verdict
    literal: Verdict | None = None
    """By the rows with the paper's literal settings, where the rule has such rows."""

    @property
    def rows(self) -> dict[Place, list[str]]:
        """The rows that its rule compares."""
        found: dict[Place, list[str]] = {}
        for name in map(self.claim.in_full, self.claim.read().names() if self.claim.rule else ()):
            labels = found.setdefault(Place(name.bench, name.table), [])
            labels += [] if name.row in labels else [name.row]
        return found

    @property
    def seeds_wanted(self) -> dict[str, int]:
        """By bench: how many seeds would decide it, as far as one can tell. Where three or more do not, twice as
        many."""
        twice = 2 * self.verdict.seeds if self.verdict.seeds >= FEWEST_SEEDS else 0
        return {place.bench: max(benches[place.bench].seeds, twice) for place in self.rows}

    def commands(self) -> list[str]:
        """What would decide the claim; nothing for one that is not open."""
        return [one.command for one in open_work([self])]

    def figures(self) -> dict[str, Any]:
        """For scripts."""
        claim = self.claim
        return {
            "id": claim.id,
            "paper": self.paper.name,
            "section": claim.section,
            "says": claim.says,
            "paper_figure": claim.figure or None,
            "bench": claim.bench or None,
            "table": claim.table or None,
            "rule": claim.rule or None,
            "size": claim.size,
            "tolerance": claim.tolerance,
            **_plain(self.verdict),
            "with_paper_settings": None if self.literal is None else _plain(self.literal),
            "cause": claim.cause or None,
            "commands": self.commands(),
        }


class Work(NamedTuple):
    """Rows of one table that open claims wait for."""

    command: str
    claims: list[str]


def ledger(paper: str | None = None, results: Results | None = None, claims: Claims | None = None) -> list[Entry]:
    """The claims of one paper or of all, judged by the records that come with the package."""
    known, judged = claims or known_claims(), results or Results()
    papers = {one.name: one for one in known.papers}
    if paper is not None and paper not in papers:
        raise UserError(unknown("paper", paper, papers))
    return [
        _entry(papers[claim.paper], claim, judged) for claim in known.claims if paper is None or claim.paper == paper
    ]


def counts(entries: Sequence[Entry]) -> dict[Word, int]:
    """How many claims have each verdict."""
    return {word: sum(entry.verdict.word == word for entry in entries) for word in WORDS}


def open_work(entries: Sequence[Entry]) -> list[Work]:
    """The commands that would decide what is open, one for each table. What is recorded is not run again."""
    rows: dict[Place, dict[str, None]] = {}
    seeds: dict[Place, int] = {}
    waiting: dict[Place, list[str]] = {}
    for entry in (entry for entry in entries if entry.verdict.word == "open"):
        for place, labels in entry.rows.items():
            rows.setdefault(place, {}).update(dict.fromkeys(labels))
            seeds[place] = max(seeds.get(place, 0), entry.seeds_wanted[place.bench])
            waiting.setdefault(place, []).append(entry.claim.id)
    return [Work(_command(place, list(rows[place]), seeds[place]), waiting[place]) for place in rows]


def _command(place: Place, rows: Sequence[str], seeds: int) -> str:
    words = ["polytempo", "bench", place.bench, "--only", place.table]
    words += [word for row in rows for word in ("--row", row)]
    words += ["--seeds", str(seeds)] if seeds != benches[place.bench].seeds else []
    return f"{shlex.join(words)} --publish --data-dir DIR"


def _entry(paper: Paper, claim: Claim, results: Results) -> Entry:
    names = claim.read().names() if claim.rule else []
    swapped = any(name.row in paper.literal for name in names)
    return Entry(paper, claim, results.verdict(claim), results.verdict(claim, paper) if swapped else None)


def _plain(verdict: Verdict) -> dict[str, Any]:
    return {
        "verdict": verdict.word,
        "ours": verdict.ours,
        "low": verdict.low,
        "high": verdict.high,
        "seeds": verdict.seeds,
        "at_least": verdict.bound,
        "why": verdict.why or None,
    }
