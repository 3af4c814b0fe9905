"""Verdicts and their figures in words, for the terminal and for pages."""

from polytempo.papers.claims.ledger import MARKS, Entry
from polytempo.papers.claims.verdicts import Verdict
from polytempo.report.facts.numbers import counted


def verdict_words(verdict: Verdict) -> str:
    """The mark and the word."""
    return f"{MARKS[verdict.word]} {verdict.word}"


def ours_words(entry: Entry, verdict: Verdict) -> str:
    """What the left side of the rule is in our results, with its interval and the number of seeds; empty without
    results."""
    if verdict.ours is None:
        return ""
    number = f"{'at least ' if verdict.bound else ''}{_number(verdict.ours)}{_unit(entry)}"
    if verdict.low is None or verdict.high is None:
        return f"{number}, {counted(verdict.seeds, 'seed')}"
    return f"{number} [{_number(verdict.low)} to {_number(verdict.high)}], {counted(verdict.seeds, 'seed')}"


def literal_words(entry: Entry) -> str:
    """What the rows with the paper's literal settings say, where they have been run; otherwise empty."""
    literal = entry.literal
    if literal is None or not literal.seeds:
        return ""
    return f"with the paper's settings: {verdict_words(literal)}, {ours_words(entry, literal)}"


def _unit(entry: Entry) -> str:
    return " times" if entry.claim.read().is_ratio else ""


def _number(value: float) -> str:
    """Three digits that count, at most two decimals."""
    size = abs(round(value, 2))
    decimals = 0 if size >= 100 else 1 if size >= 10 else 2
    text = f"{value:,.{decimals}f}"
    return text.removeprefix("-") if not text.strip("-0.") else text
