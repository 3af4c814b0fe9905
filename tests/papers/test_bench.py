import json
from dataclasses import replace

import pytest
import torch

from polytempo.core.errors import UserError
from polytempo.papers import Bench, Case, Column, Table, benches, part_of, quick_form, run_bench
from polytempo.papers.tables import Kept
from polytempo.sim.experiment import make_experiment
from polytempo.strategies import RECONSTRUCTED
from polytempo.testing import Planted
from polytempo_client.model.schema import Schema

SETTINGS = {"data": "digits", "clients": 4, "updates": 8, "target": 0.999}
ACCURACY = Column("accuracy", "accuracy %", scale=100)
TIME = Column("time_to_target", "time", missing="not reached")
UPDATES = Column("updates", "updates / base", relative=True)


def table(name, cases, columns=(ACCURACY,), **settings):
    return Table(name, name.title(), "", {**SETTINGS, **settings}, cases, columns)


def bench(*tables, name="small"):
    return Bench(name, "A small one", "", tables, quick={"updates": 4}, seeds=1)


@pytest.fixture(autouse=True)
def _without_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take most of the time, and tests/cli sees that they are there."""
    monkeypatch.setattr("polytempo.papers.tables._draw", lambda *_: None)


def run(chosen, out):
    return run_bench(chosen, chosen, Kept(out), lambda label: None, lambda standing: None)


def fedavg(**others):
    return Case("fedavg", {"strategy": "fedavg"}, **others)


@pytest.mark.parametrize("name", list(benches))
def test_every_row_of_every_bench_is_an_experiment_that_begins(name):
    weights, schema = torch.zeros(2), Schema(("w",), ((2,),), 2)
    for form in (benches[name], quick_form(benches[name])):
        for each in form.tables:
            for case in each.cases:
                experiment = make_experiment(**{**each.settings, **case.settings})
                experiment.check()
                experiment.begin(experiment.make(), weights, schema, None, {"proxies": Planted(weights, weights)})


@pytest.mark.parametrize("name", list(benches))
def test_every_base_is_a_row_of_the_same_table(name):
    for each in benches[name].tables:
        labels = [case.label for case in each.cases]
        assert len(set(labels)) == len(labels)
        bases = {case.base for case in each.cases} | {column.base for column in (*each.columns, *each.kept)}
        assert bases - {None} <= set(labels)


def test_a_figure_may_compare_a_run_with_that_of_the_base_of_the_same_seed(tmp_path):
    longer = Column(
        "longer", "longer", scale=10, compare=lambda run, base: run.result["updates"] - base.result["updates"]
    )
    cases = [fedavg(), Case("more", {"strategy": "fedavg", "updates": 12}, base="fedavg")]
    run(bench(table("one", cases, (longer,))), tmp_path)
    rows = json.loads((tmp_path / "small/one.json").read_text())["rows"]
    assert [row["longer"]["ours"] for row in rows] == [[], [40]]


def test_a_table_warns_of_rows_that_are_reconstructed(tmp_path):
    built = Case("asafl (reconstructed)", {"strategy": "asafl"})
    run(bench(table("one", [fedavg(), built]), table("two", [fedavg()])), tmp_path)
    texts = [(tmp_path / f"small/{name}.md").read_text() for name in ("one", "two")]
    assert [RECONSTRUCTED in text for text in texts] == [True, False]


def test_a_row_that_stands_in_two_benches_is_run_once(tmp_path):
    run(bench(table("one", [fedavg()])), tmp_path)
    (kept,) = (tmp_path / "runs").iterdir()
    before = (kept / "result.json").stat().st_mtime_ns
    run(bench(table("another", [fedavg()]), name="other"), tmp_path)
    assert list((tmp_path / "runs").iterdir()) == [kept]
    assert (kept / "result.json").stat().st_mtime_ns == before


def test_a_bench_that_is_cut_off_leaves_the_tables_that_are_done(tmp_path):
    broken = table("second", [Case("none", {"strategy": "no-such"})])
    with pytest.raises(UserError, match="no-such"):
        run(bench(table("first", [fedavg()]), broken), tmp_path)
    assert json.loads((tmp_path / "small/first.json").read_text())["rows"][0]["label"] == "fedavg"
    assert not (tmp_path / "small/second.json").exists()


def test_the_papers_figures_stand_beside_ours(tmp_path):
    cases = [
        fedavg(paper={"accuracy": 97.9, "time_to_target": None}),
        Case("fedasync", {"strategy": "fedasync"}, {}),
    ]
    (written,) = run(bench(table("one", cases, (ACCURACY, TIME))), tmp_path)
    head, _, *rows = [line for line in written.read_text().splitlines() if line.startswith("|")]
    assert head == "| method | accuracy % | accuracy %, paper | time | time, paper |"
    assert [row.split(" | ")[2:] for row in rows] == [
        ["97.90", "not reached", "not reached |"],
        ["–", "not reached", "– |"],
    ]


def test_relative_figures_are_divided_by_those_of_the_base(tmp_path):
    cases = [
        fedavg(paper={"updates": 30.0}, base="twice"),
        Case("twice", {"strategy": "fedavg", "updates": 16}, {"updates": 20.0}),
    ]
    run(bench(table("one", cases, (UPDATES,))), tmp_path)
    rows = json.loads((tmp_path / "small/one.json").read_text())["rows"]
    assert [row["updates / base"] for row in rows] == [{"ours": [0.5], "paper": 1.5}, {"ours": [None]}]


def test_a_ratio_to_a_base_that_has_none_is_not_a_target_that_was_missed(tmp_path):
    ratio = replace(TIME, title="time / base", relative=True)
    cases = [fedavg(base="hard"), Case("hard", {"strategy": "fedavg"}, base="hard")]
    (written,) = run(bench(table("one", cases, (TIME, ratio), target=1.0)), tmp_path)
    rows = [line for line in written.read_text().splitlines() if line.startswith("|")][2:]
    assert rows == ["| fedavg | not reached | – |", "| hard | not reached | – |"]


def test_a_part_of_a_bench_has_only_the_tables_and_rows_named():
    two = bench(table("one", [fedavg(), replace(fedavg(), label="again")]), table("two", [fedavg()]))
    assert [each.name for each in part_of(two, ["two"], []).tables] == ["two"]
    assert [each.name for each in part_of(two, [], ["again"]).tables] == ["one"]
    with pytest.raises(UserError, match="Unknown table"):
        part_of(two, ["three"], [])


def test_a_row_that_the_chosen_tables_do_not_have_is_an_error():
    whole = bench(table("one", [fedavg()]), table("two", [Case("other", {})]))
    with pytest.raises(UserError, match=r"one of small has no row other\. Leave --only out"):
        part_of(whole, ["one"], ["other"])


def test_a_part_of_a_bench_keeps_the_rows_that_its_rows_are_compared_with():
    against = Column("against", "against", compare=lambda run, base: 1.0)
    cases = [fedavg(), Case("one", {}, base="fedavg"), Case("two", {}, base="fedavg")]
    (kept,) = part_of(bench(table("t", cases, (against,))), [], ["two"]).tables
    assert [case.label for case in kept.cases] == ["fedavg", "two"]
    (kept,) = part_of(bench(table("t", cases, (replace(UPDATES, base="one"),))), [], ["two"]).tables
    assert [case.label for case in kept.cases] == ["one", "two"]
    (kept,) = part_of(bench(table("t", cases)), [], ["two"]).tables
    assert [case.label for case in kept.cases] == ["two"]


def test_a_bench_may_begin_with_another_seed_than_0(tmp_path):
    later = replace(bench(table("one", [fedavg()])), first_seed=4, seeds=2)
    (written,) = run(later, tmp_path)
    assert [path.name.split("-")[3] for path in sorted((tmp_path / "runs").iterdir())] == ["seed4", "seed5"]
    assert "2 seeds (4 to 5), mean" in written.read_text()


def test_a_column_may_be_relative_to_a_row_of_its_own(tmp_path):
    cases = [fedavg(), Case("twice", {"strategy": "fedavg", "updates": 16}, base="fedavg")]
    run(bench(table("one", cases, (replace(UPDATES, base="twice"),))), tmp_path)
    rows = json.loads((tmp_path / "small/one.json").read_text())["rows"]
    assert [row["updates / base"]["ours"] for row in rows] == [[0.5], [1.0]]


def test_the_quick_form_is_the_first_table_with_its_own_settings():
    (only,) = quick_form(bench(table("one", [fedavg()]), table("two", [fedavg()]))).tables
    assert only.name == "one"
    assert only.settings["updates"] == 4


def test_the_quick_form_may_have_several_tables():
    two = replace(bench(table("one", [fedavg()]), table("two", [fedavg()])), quick_tables=2)
    assert [each.name for each in quick_form(two).tables] == ["one", "two"]
    assert quick_form(two).name == "small-quick"


def test_an_overview_has_a_column_per_table_and_the_papers_figure_in_brackets(tmp_path):
    other = Case("other", {"strategy": "fedavg", "updates": 12}, base="fedavg")
    tables = [
        replace(table("one", [fedavg(base="fedavg"), other], (UPDATES,)), block="A", heading="small"),
        replace(table("two", [fedavg(paper={"updates": 30.0}, base="fedavg")], (UPDATES,)), block="A", heading="large"),
        replace(table("three", [fedavg()], (UPDATES,)), block="B", heading="alone"),
    ]
    *_, written = run(replace(bench(*tables), overview=UPDATES), tmp_path)
    assert written == tmp_path / "small/overview.md"
    lines = [line for line in written.read_text().splitlines() if line.startswith(("|", "##"))]
    assert lines == [
        *("## A", "| method | small | large |", "|---|---:|---:|", "| fedavg | 1.00 | 1.00 (1.00) |"),
        *("| other | 1.50 | – |", "| seeds that count | 1 | 1 |"),
        *("## B", "| method | alone |", "|---|---:|", "| fedavg | – |", "| seeds that count | 1 |"),
    ]


def test_an_overview_keeps_the_tables_of_earlier_runs(tmp_path):
    tables = [replace(table(name, [fedavg(base="fedavg")], (UPDATES,)), heading=name) for name in ("one", "two")]
    whole = replace(bench(*tables), overview=UPDATES)
    for name in ("two", "one"):
        *_, written = run_bench(part_of(whole, [name], []), whole, Kept(tmp_path), lambda _: None, lambda _: None)
    assert "| method | one | two |" in written.read_text()


def test_the_rows_of_fedcompass_have_the_papers_figure_of_their_own_world():
    by_name = {each.name: each for each in benches["fedcompass-table1"].tables}
    assert len(by_name) == 18
    row = next(case for case in by_name["dirichlet-10-exponential"].cases if case.label == "fedat")
    assert row.paper == {"time_to_target": 2.44}
    row = next(case for case in by_name["class-20-normal"].cases if case.label == "fedasync")
    assert row.paper == {"time_to_target": 4.44}
    assert by_name["class-20-normal"].settings["steps"] == 100
