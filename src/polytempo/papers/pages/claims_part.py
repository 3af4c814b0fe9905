"""Claims and verdicts as Markdown: the ledger's overview, and the claims of one paper."""

from collections.abc import Sequence

from polytempo.papers.claims.ledger import MARKS, Entry, counts
from polytempo.papers.claims.verdicts import WORDS
from polytempo.papers.claims.wording import literal_words, ours_words, verdict_words
from polytempo.papers.markdown import table_head, table_line
from polytempo.report.facts.numbers import counted

PICTURE = "figures/ledger.svg"


def overview_part(entries: Sequence[Entry]) -> str:
    """How many claims of each paper have which verdict, and which are contradicted."""
    papers = {entry.paper.name: entry.paper for entry in entries}
    decided = sum(entry.verdict.decided for entry in entries)
    lines = [
        f"{decided} of {len(entries)} claims are decided.",
        "",
        f"![The claims of five papers, a mark for each]({PICTURE})",
        "",
        *table_head(["paper", "claims", *(f"{MARKS[word]} {word}" for word in WORDS)]),
    ]
    for name, paper in papers.items():
        own = [entry for entry in entries if entry.paper.name == name]
        cells = [f"[{paper.title}]({name}.md)", len(own), *counts(own).values()]
        lines.append(table_line(list(map(str, cells))))
    lines.append(table_line(["all", *map(str, (len(entries), *counts(entries).values()))]))
    contradicted = [entry for entry in entries if entry.verdict.word == "contradicted"]
    if contradicted:
        lines += ["", "Contradicted:", ""]
        lines += [
            f"- [{e.paper.title.partition(' (')[0]}]({e.paper.name}.md#claims): {e.claim.says}" for e in contradicted
        ]
    return "\n".join(lines)


def claims_part(entries: Sequence[Entry]) -> str:
    """The claims of a paper, and the causes of contradictions."""
    found = ", ".join(f"{count} {word}" for word, count in counts(entries).items() if count)
    lines = [f"{counted(len(entries), 'claim')}: {found}.", ""]
    lines += table_head(["verdict", "claim", "the paper", "ours [95 % interval]", "measured by"])
    lines += [table_line(_cells(entry)) for entry in entries]
    causes = [entry for entry in entries if entry.verdict.word == "contradicted" and entry.claim.cause]
    if causes:
        lines += ["", "Why some are contradicted:", ""]
        lines += [f"- **{entry.claim.says}** {entry.claim.cause}" for entry in causes]
    return "\n".join(lines).replace("|---|---:|---:|---:|---:|", "|---|---|---|---|---|")


def _cells(entry: Entry) -> list[str]:
    claim, verdict = entry.claim, entry.verdict
    ours = [ours_words(entry, verdict), verdict.why, literal_words(entry)]
    measured_by = f"`{claim.bench}`, `{claim.table}`" if claim.bench else "–"
    return [
        verdict_words(verdict),
        f"{claim.says} ({claim.section})",
        claim.figure,
        "; ".join(filter(None, ours)),
        measured_by,
    ]
