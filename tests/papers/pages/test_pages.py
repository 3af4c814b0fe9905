"""The pages of results, and that they are in step with claims and records."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from polytempo.core.errors import UserError
from polytempo.papers.bench import Column
from polytempo.papers.claims.claims import known_claims
from polytempo.papers.claims.ledger import counts, ledger
from polytempo.papers.claims.verdicts import Results
from polytempo.papers.pages.ahead import ahead_part
from polytempo.papers.pages.chart import chart
from polytempo.papers.pages.parts import with_parts, without_superseded
from polytempo.papers.pages.picture import ledger_picture
from polytempo.papers.pages.worlds_part import worlds_part
from polytempo.papers.pages.writing import left_over, made_pages, write_pages
from polytempo.papers.records import Record

PAGES = Path(__file__).parents[3] / "docs/results"
PART = "# A page\n\n<!-- made: claims casa -->\n\nold\n\n<!-- end of claims casa -->\n\nProse.\n"
EARLIER = (
    "# A page\n\n## 0.2.0, smaller set-ups\n\n<!-- until casa-table1 mnist -->\nOld figures.\n<!-- end until -->\n"
)


@pytest.fixture(scope="module")
def made() -> dict[Path, str]:
    return made_pages(PAGES)


def record(table: str, label: str, seed: int, **figures: float) -> Record:
    return Record(table, label, label, seed, "hash", figures, {})


def test_pages_and_drawings_are_what_claims_and_records_make(made):
    stale = [path.name for path, text in made.items() if not path.exists() or path.read_text() != text]
    assert stale == [], "make results"
    assert left_over(PAGES, made) == []


def test_every_drawing_is_shown_by_a_page(made):
    text = "".join(page for path, page in made.items() if path.suffix == ".md")
    for drawing in (path for path in made if path.suffix == ".svg"):
        assert f"(figures/{drawing.name})" in text
        ElementTree.fromstring(made[drawing])


def test_the_picture_has_a_mark_for_each_claim_and_each_verdict():
    entries = ledger()
    drawn = ElementTree.fromstring(ledger_picture(entries))
    found = counts(entries)
    circles = [one for one in drawn.iter() if one.tag.endswith("circle")]
    assert len(circles) == found["holds"] + found["direction"] + found["open"] + 3
    words = {one.text for one in drawn.iter() if one.tag.endswith("text")}
    assert {f"{word} {count}" for word, count in found.items()} <= words


def test_the_page_of_a_paper_has_all_its_claims(made):
    for paper in known_claims().papers:
        page = made[PAGES / f"{paper.name}.md"]
        assert all(claim.says in page for claim in known_claims().of(paper.name))


def test_only_the_part_between_markers_is_made_anew():
    page = with_parts(PART, lambda name: f"new {name}")
    assert page == PART.replace("old", "new claims casa")
    assert with_parts(page, lambda name: f"new {name}") == page


def test_a_part_that_does_not_end_is_an_error():
    with pytest.raises(UserError, match="1 parts of a page begin, and 0 end"):
        with_parts("<!-- made: ledger -->\n\n", lambda name: name)


def test_an_unknown_part_is_an_error(tmp_path):
    (tmp_path / "page.md").write_text("<!-- made: nonsense -->\n\n<!-- end of nonsense -->\n")
    with pytest.raises(UserError, match="There is no part 'nonsense'"):
        made_pages(tmp_path)


def test_figures_of_before_stay_until_their_table_is_measured():
    assert without_superseded(EARLIER, lambda bench, table: False) == EARLIER
    assert without_superseded(EARLIER, lambda bench, table: (bench, table) == ("casa-table1", "mnist")) == "# A page\n"


def test_writing_changes_what_is_stale_and_deletes_what_no_page_shows(tmp_path):
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures/old.svg").write_text("")
    (tmp_path / "page.md").write_text("# A page\n")
    assert [path.name for path in write_pages(tmp_path)] == ["ledger.svg"]
    assert not (tmp_path / "figures/old.svg").exists()
    assert write_pages(tmp_path) == []


def test_a_chart_shows_mean_seeds_and_the_papers_figure():
    rows = [{"label": "casa", "used %": {"ours": [90.0, 92.0, 94.0], "paper": 95.0}}]
    drawn = chart("A table", Column("accuracy_used", "used %"), rows)
    assert drawn is not None
    texts = [one.text for one in ElementTree.fromstring(drawn).iter() if one.tag.endswith("text")]
    assert {"A table: used %", "casa", "92.00", "the paper"} <= set(texts)
    nothing = [{"label": "casa", "used %": {"ours": [None, None]}}]
    assert chart("A table", Column("accuracy_used", "used %"), nothing) is None


def test_a_simpler_method_that_is_ahead_everywhere_is_named():
    ahead = {"casa": 0.8, "fedavg": 0.9, "fedasync": 0.7}
    found = [
        record(table, label, seed, accuracy=value + 0.001 * seed, accuracy_used=value + 0.001 * seed)
        for table in ("mnist", "wisdm")
        for label, value in ahead.items()
        for seed in (4, 5, 6)
    ]
    paper = next(one for one in known_claims().papers if one.name == "casa")
    said = ahead_part(paper, Results(lambda bench: found if bench == "casa-table1" else []))
    assert "`fedavg` (2 worlds)" in said
    assert "fedasync" not in said


def test_worlds_say_who_is_ahead_of_concerto():
    values = {"standalone": 0.7, "fedasync": 0.5, "apfl": 0.9, "concerto": 0.8}
    found = [record("mnist-iid", label, seed, accuracy_used=v) for label, v in values.items() for seed in (4, 5, 6)]
    said = worlds_part(Results(lambda bench: found if bench == "concerto" else []))
    assert "| 70.0 | 50.0 fedasync | 90.0 apfl | 80.0 | -10.00 [-10.00 to -10.00] |" in said
    assert "`apfl` +10.00 [+10.00 to +10.00] points" in said
    assert "`fedasync`" not in said
