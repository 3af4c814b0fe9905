"""The claims that come with the package are complete, and their rules name what there is."""

from pathlib import Path

import pytest

from polytempo.core.errors import UserError
from polytempo.papers import benches
from polytempo.papers.claims.claims import Claim, known_claims, read_claims, what_is_wrong

PAPERS = ["casa", "fedcompass", "pace", "echopfl", "cdfl"]


@pytest.mark.parametrize("claim", known_claims().claims, ids=lambda claim: claim.id)
def test_every_rule_names_figures_that_there_are(claim: Claim) -> None:
    assert what_is_wrong(claim) is None


def test_every_paper_has_claims_and_every_bench_of_a_paper_has_one() -> None:
    known = known_claims()
    assert [paper.name for paper in known.papers] == PAPERS
    tested = {claim.bench for claim in known.claims}
    assert {name for name in benches if name.partition("-")[0] in PAPERS} == tested - {""}
    assert all(claim.id.startswith(f"{claim.paper}-") for claim in known.claims)


def test_rows_with_the_papers_settings_are_rows_of_some_table() -> None:
    labels = {case.label for bench in benches for table in benches[bench].tables for case in table.cases}
    literal = {row for paper in known_claims().papers for pair in paper.literal.items() for row in pair}
    assert literal <= labels


@pytest.mark.parametrize(
    ("rule", "wrong"),
    [
        ('accuracy["cassa"] > 0', "no row 'cassa'"),
        ('acuracy["casa"] > 0', "no figure 'acuracy'"),
        ('accuracy["svhn", "casa"] > 0', "no table 'svhn'"),
        ('accuracy["casa-table9", "mnist", "casa"] > 0', "no table 'mnist' of a benchmark 'casa-table9'"),
        ('accuracy["casa"] >= 0', "is no rule"),
        ("1 > 0", "names no figure"),
    ],
)
def test_a_rule_that_names_what_there_is_not_is_found(rule: str, wrong: str) -> None:
    found = what_is_wrong(Claim("c", "casa", "1", "says", bench="casa-table1", table="mnist", rule=rule))
    assert found is not None
    assert wrong in found


HEAD = '[[paper]]\nname = "p"\ntitle = "P"\n'


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ('[[claim]]\nid = "c"\npaper = "q"\nsection = "1"\nsays = "s"\nreason = "r"', "is of 'q'"),
        ('[[claim]]\nid = "c"\npaper = "p"\nsection = "1"\nsays = "s"', "expected a rule, or a reason"),
        ('[[claim]]\nid = "c"\npaper = "p"\nsection = "1"\nsays = "s"\nrule = "x"', "a rule needs a bench"),
        ('[[claim]]\nid = "c"\npaper = "p"\nsays = "s"\nreason = "r"', "section"),
        ('[[claim]]\nid = "c"\npaper = "p"\nsection = "1"\nsays = "s"\nreason = "r"\nwhy = 1', "unknown: why"),
        ('[[claim]]\nid = "c"\npaper = "p"\nsection = "1"\nsays = "s"\nreason = "r"\nsize = 1', "belong together"),
    ],
)
def test_a_claim_that_lacks_something_is_named(tmp_path: Path, text: str, wrong: str) -> None:
    (tmp_path / "claims.toml").write_text(HEAD + text)
    with pytest.raises(UserError, match=wrong):
        read_claims(tmp_path / "claims.toml")
