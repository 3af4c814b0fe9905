"""``polytempo bench --check`` and ``polytempo claims``, as a script outside would use them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polytempo.papers import Bench, Case, Column, Table, benches
from support import Call

SETTINGS = {"data": "digits", "clients": 4, "updates": 8}
CASES = [Case("fedavg", {"strategy": "fedavg"})]
BENCH = Bench(
    "tiny", "A tiny one", "", [Table("one", "One", "", SETTINGS, CASES, (Column("accuracy", "accuracy"),))], {}, seeds=2
)


@pytest.fixture
def tiny() -> Iterator[None]:
    with benches.lent("tiny", BENCH):
        yield


def change_records(path: Path, **changed: Any) -> None:
    content = json.loads(path.read_text())
    content["records"] = [{**record, **changed} for record in content["records"]]
    path.write_text(json.dumps(content))


@pytest.mark.usefixtures("tiny")
def test_records_are_checked_by_making_their_runs_again(polytempo: Call, tmp_path: Path) -> None:
    code, _, err = polytempo("bench", "tiny", "--check")
    assert (code, "has no records of these rows and seeds" in err) == (2, True)
    assert polytempo("bench", "tiny", "--no-report", "--quiet")[0] == 0
    kept = tmp_path / "results/tiny/records.json"
    before = kept.read_text()
    code, out, _ = polytempo("bench", "tiny", "--check", "--quiet")
    same = [f"one: fedavg, seed {seed}: the same to the last bit" for seed in (0, 1)]
    assert (code, sorted(out.splitlines())) == (0, same)
    assert kept.read_text() == before
    change_records(kept, digest="0" * 16)
    code, out, err = polytempo("bench", "tiny", "--check", "--quiet")
    assert (code, out.count("digest")) == (2, 2)
    assert "2 figures of 2 runs are not as recorded" in err


def test_the_ledger_is_printed_with_what_would_decide_it(polytempo: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    code, out, _ = polytempo("claims", "--paper", "echopfl")
    assert code == 0
    assert "EchoPFL (Li et al., IMWUT 2024)" in out
    assert "● holds" in out
    assert "– not tested" in out
    assert out.count("CASA") == 0


def test_the_ledger_is_one_json_list_for_scripts(polytempo: Call) -> None:
    code, out, _ = polytempo("claims", "--json")
    claims = json.loads(out)
    assert code == 0
    assert {claim["paper"] for claim in claims} == {"casa", "fedcompass", "pace", "echopfl", "cdfl"}
    assert all(claim["commands"] for claim in claims if claim["verdict"] == "open")
    code, _, err = polytempo("claims", "--paper", "cassa")
    assert (code, "Did you mean 'casa'" in err) == (2, True)
