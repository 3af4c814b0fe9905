"""The ledger: every claim with its verdict, and what would decide the open ones."""

from collections.abc import Iterator, Sequence

import pytest

from polytempo.core.errors import UserError
from polytempo.papers import Bench, Case, Column, Table, benches
from polytempo.papers.claims.claims import Claim, Claims, Paper, known_claims
from polytempo.papers.claims.ledger import MARKS, Entry, counts, ledger, open_work
from polytempo.papers.claims.verdicts import WORDS, Results
from polytempo.papers.claims.wording import literal_words, ours_words
from polytempo.papers.records import Record

PAPER = Paper("p", "P (2024)", {"ours": "ours, paper's settings"})
COLUMNS = (Column("accuracy", "accuracy %", scale=100.0), Column("time_to_target", "time"), Column("virtual_time", "s"))
ROWS = [Case(label, {}) for label in ("ours", "ours, paper's settings", "base", "other")]
TABLES = [Table("t", "T", "", {}, ROWS, COLUMNS), Table("u", "U", "", {}, ROWS, COLUMNS)]
BENCH = Bench("ledger-test", "A test", "", TABLES, {})
AHEAD = 'accuracy["ours"] - accuracy["base"] > 0'
FASTER = 'time_to_target["base"] / time_to_target["ours"] > 1'


def claim(number: int, rule: str = "", **more: str) -> Claim:
    place = {"bench": "ledger-test", "table": "t", "rule": rule} if rule else {"reason": "no data"}
    return Claim(f"p-{number}", "p", "1", "A claim.", **place, **more)


def record(label: str, seed: int, accuracy: float, time: float | None) -> Record:
    figures = {"accuracy": accuracy, "time_to_target": time, "virtual_time": 100.0}
    return Record("t", label, "fedavg", seed, f"{label}{seed}", figures, {})


@pytest.fixture(autouse=True)
def _bench() -> Iterator[None]:
    with benches.lent("ledger-test", BENCH):
        yield


def entries(*claims: Claim, seeds: Sequence[int] = (1, 2, 3)) -> list[Entry]:
    rows = {"ours": (0.9, 10.0), "ours, paper's settings": (0.7, 20.0), "base": (0.8, None)}
    made = [record(label, seed, a + seed / 1000, t) for label, (a, t) in rows.items() for seed in seeds]
    return ledger(None, Results(lambda bench: made), Claims([PAPER], list(claims)))


def test_every_claim_has_a_verdict_and_every_verdict_a_mark() -> None:
    found = ledger()
    assert [entry.claim for entry in found] == list(known_claims().claims)
    assert sum(counts(found).values()) == len(found)
    assert MARKS.keys() == set(WORDS)
    assert len(set(MARKS.values())) == len(WORDS)


def test_the_ledger_of_an_unknown_paper_is_an_error() -> None:
    assert {entry.paper.name for entry in ledger("casa")} == {"casa"}
    with pytest.raises(UserError, match=r"Unknown paper 'caza'\. Did you mean 'casa'"):
        ledger("caza")


def test_a_decided_claim_has_figures_and_no_command() -> None:
    (found,) = entries(claim(1, AHEAD, cause="The data are easy."))
    figures = found.figures()
    assert (figures["verdict"], figures["seeds"], figures["commands"]) == ("holds", 3, [])
    assert figures["ours"] == pytest.approx(10.0)
    assert figures["cause"] == "The data are easy."
    assert figures["with_paper_settings"]["verdict"] == "contradicted"
    assert ours_words(found, found.verdict) == "10.0 [10.0 to 10.0], 3 seeds"
    assert literal_words(found).startswith("with the paper's settings: ✕ contradicted, -10.0 [")


def test_a_quotient_is_shown_as_times_and_a_bound_as_at_least() -> None:
    (found,) = entries(claim(1, FASTER))
    assert ours_words(found, found.verdict) == "at least 10.0 times [10.0 to 10.0], 3 seeds"


def test_an_open_claim_says_what_would_decide_it() -> None:
    missing = claim(1, 'accuracy["ours"] - max(accuracy["other"], accuracy["u", "base"]) > 0')
    (found,) = entries(missing)
    assert found.verdict.why == "no run of t: other; u: base"
    assert found.commands() == [
        "polytempo bench ledger-test --only t --row ours --row other --publish --data-dir DIR",
        "polytempo bench ledger-test --only u --row base --publish --data-dir DIR",
    ]
    assert ours_words(found, found.verdict) == ""


def test_open_claims_of_one_table_are_decided_by_one_command() -> None:
    work = open_work(entries(claim(1, AHEAD), claim(2, 'accuracy["ours"] - accuracy["other"] > 0'), seeds=(1, 2)))
    assert work == [
        (
            "polytempo bench ledger-test --only t --row ours --row base --row other --publish --data-dir DIR",
            ["p-1", "p-2"],
        )
    ]


def test_a_claim_that_three_seeds_leave_open_asks_for_twice_as_many() -> None:
    (found,) = entries(claim(1, 'accuracy["ours"] - 90.2 > 0'))
    assert found.verdict.why == "the interval has both signs"
    assert found.commands() == ["polytempo bench ledger-test --only t --row ours --seeds 6 --publish --data-dir DIR"]


def test_a_claim_that_is_not_tested_has_its_reason() -> None:
    (found,) = entries(claim(1))
    assert (found.figures()["verdict"], found.figures()["why"], found.commands()) == ("not tested", "no data", [])
