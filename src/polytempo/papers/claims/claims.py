"""The claims, as claims.toml has them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from polytempo.core.errors import UserError
from polytempo.papers.bench import Table, benches
from polytempo.papers.claims.rules import ClaimRule, Name, RuleError, read_rule
from polytempo.world.tables import read_toml

CLAIMS = Path(__file__).parents[1] / "claims.toml"


@dataclass(frozen=True)
class Paper:
    """One of the papers."""

    name: str
    title: str
    """Its method, authors and year."""
    literal: Mapping[str, str] = field(default_factory=dict)
    """Rows with our default parameters -> those with the paper's literal settings, where tables have both."""


@dataclass(frozen=True)
class Claim:
    """Something that a paper says."""

    id: str
    paper: str
    section: str
    says: str
    """In our words."""
    figure: str = ""
    """The paper's figure, for people."""
    bench: str = ""
    table: str = ""
    rule: str = ""
    size: float | None = None
    """What the left side of the rule is in the paper, where the paper gives it, ..."""
    tolerance: float | None = None
    """... and how far ours may be from it: a difference or, where the left side is a quotient, a factor."""
    reason: str = ""
    """Why the claim is not tested."""
    cause: str = ""
    """Of a claim that is contradicted: what an experiment found as its cause."""

    def __post_init__(self) -> None:
        if bool(self.rule) == bool(self.reason):
            raise ValueError("expected a rule, or a reason why it is not tested")
        if self.rule and not (self.bench and self.table):
            raise ValueError("a rule needs a bench and a table")
        if (self.size is None) != (self.tolerance is None):
            raise ValueError("size and tolerance belong together")

    def read(self) -> ClaimRule:
        """Its rule."""
        return read_rule(self.rule)

    def in_full(self, name: Name) -> Name:
        """A figure of its rule with the table and the bench that it is of."""
        return name._replace(bench=name.bench or self.bench, table=name.table or self.table)


@dataclass(frozen=True)
class Claims:
    """All of them, in the order of the file."""

    papers: Sequence[Paper]
    claims: Sequence[Claim]

    def of(self, paper: str) -> list[Claim]:
        return [claim for claim in self.claims if claim.paper == paper]


@cache
def known_claims() -> Claims:
    """The claims that come with the package."""
    return read_claims(CLAIMS)


def read_claims(path: Path) -> Claims:
    """The claims of a file: [[paper]] and [[claim]] tables."""
    given = read_toml(path)
    papers = [_made(Paper, row, path) for row in given.get("paper", [])]
    claims = [_made(Claim, row, path) for row in given.get("claim", [])]
    known = {paper.name for paper in papers}
    seen: set[str] = set()
    for claim in claims:
        if claim.paper not in known or claim.id in seen:
            what = "is there twice" if claim.id in seen else f"is of {claim.paper!r}, which is no [[paper]]"
            raise UserError(f"{path}: claim {claim.id!r} {what}.")
        seen.add(claim.id)
    return Claims(papers, claims)


def what_is_wrong(claim: Claim) -> str | None:
    """Why the rule of a claim cannot be judged by any result: it is not understood, or names what no table has."""
    if not claim.rule:
        return None
    try:
        names = [claim.in_full(name) for name in claim.read().names()]
    except RuleError as error:
        return str(error)
    if not names:
        return "the rule names no figure"
    return next((missing for name in names if (missing := _missing(name)) is not None), None)


def table_of(name: Name) -> Table | None:
    """The table that a figure is of."""
    if name.bench not in benches:
        return None
    return next((table for table in benches[name.bench].tables if table.name == name.table), None)


def _missing(name: Name) -> str | None:
    table = table_of(name)
    if table is None:
        return f"there is no table {name.table!r} of a benchmark {name.bench!r}"
    if name.row not in [case.label for case in table.cases]:
        return f"{name.bench}, {name.table} has no row {name.row!r}"
    if name.figure not in table.figures():
        return f"{name.bench}, {name.table} has no figure {name.figure!r}"
    return None


def _made(kind: type[Any], row: Mapping[str, Any], path: Path) -> Any:
    """A record of a table of the file."""
    unknown = row.keys() - {field.name for field in fields(kind)}
    try:
        if unknown:
            raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
        return kind(**row)
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}: {kind.__name__.lower()} {row.get('id', row.get('name'))!r}: {error}.") from None
