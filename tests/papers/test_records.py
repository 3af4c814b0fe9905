"""What is kept of the runs of a recorded benchmark, and that its tables need nothing else."""

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from polytempo.core.errors import UserError
from polytempo.papers import Bench, Case, Column, Table, benches, part_of, quick_form, run_bench
from polytempo.papers.bench import rivals_of
from polytempo.papers.measuring import measured
from polytempo.papers.records import PUBLISHED, Records, settings_hash
from polytempo.papers.tables import Kept
from polytempo.sim.experiment import make_experiment
from polytempo.strategies.methods.fedasync import FedAsync
from polytempo.strategies.parts.personal import PersonalRule

RECORDED = [name for name in benches if benches[name].recorded]
COLUMNS = (Column("accuracy", "accuracy %", scale=100), Column("gain", "gain", compare=lambda run, base: 1 / 3))
CASES = [
    Case("alone", {"strategy": "standalone"}, base="alone"),
    Case("fedavg", {"strategy": "fedavg"}, base="alone"),
]
SETTINGS = {"data": "digits", "clients": 4, "updates": 8}
SMALL = Bench("small", "A small one", "", [Table("one", "One", "", SETTINGS, CASES, COLUMNS)], {}, seeds=1)
WHOLE = replace(SMALL, seeds=2, first_seed=1, recorded=True)


@pytest.fixture(autouse=True)
def _without_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take most of the time, and tests/cli sees that they are there."""
    monkeypatch.setattr("polytempo.papers.tables._draw", lambda *_: None)


def run(part: Bench, out: Path) -> tuple[str, list[str]]:
    """The Markdown of the table, and what was run for it."""
    begun: list[str] = []
    written, *_ = run_bench(part, WHOLE, Kept(out), begun.append, lambda _: None)
    return written.read_text(), begun


def records(out: Path) -> list[dict]:
    return json.loads((out / "small/records.json").read_text())["records"]


def test_every_run_leaves_one_line_with_its_figures(tmp_path):
    run(WHOLE, tmp_path)
    kept = records(tmp_path)
    assert [(one["label"], one["seed"]) for one in kept] == [("alone", 1), ("alone", 2), ("fedavg", 1), ("fedavg", 2)]
    assert all(set(one["figures"]) == {"accuracy", "gain"} and one["figures"]["gain"] == 0.333333 for one in kept)
    assert len((tmp_path / "small/records.json").read_text().splitlines()) == 2 + len(kept) + 1
    content = json.loads((tmp_path / "small/records.json").read_text())
    assert "torch" in content["versions"][kept[0]["versions"]]


def test_a_recorded_table_is_written_again_without_its_runs(tmp_path):
    before, _ = run(WHOLE, tmp_path)
    shutil.rmtree(tmp_path / "runs")
    assert run(WHOLE, tmp_path) == (before, [])
    assert not (tmp_path / "runs").exists()


def test_only_what_is_missing_is_run_and_the_table_has_all_that_is_recorded(tmp_path):
    text, begun = run(replace(part_of(WHOLE, [], ["alone"]), seeds=1), tmp_path)
    assert len(begun) == 1
    assert "| alone (1 of 2 seeds) |" in text
    text, begun = run(part_of(WHOLE, [], ["fedavg"]), tmp_path)
    assert [label.split(" (")[0] for label in begun] == [
        *("one: fedavg, seed 1", "one: alone, seed 2", "one: fedavg, seed 2"),
    ]
    assert "| alone |" in text
    assert "| fedavg |" in text


def test_published_records_are_not_run_again(tmp_path, monkeypatch):
    run(WHOLE, tmp_path / "first")
    published = tmp_path / "published"
    published.mkdir()
    shutil.copy(tmp_path / "first/small/records.json", published / "small.json")
    monkeypatch.setattr("polytempo.papers.tables.PUBLISHED", published)
    text, begun = run(WHOLE, tmp_path / "second")
    assert "| fedavg |" in text
    assert begun == []


def test_a_record_that_lacks_a_new_figure_is_made_anew_if_its_run_is_kept(tmp_path):
    run(WHOLE, tmp_path)
    (table,) = WHOLE.tables
    wider = replace(WHOLE, tables=[replace(table, columns=(*table.columns, Column("updates", "updates", digits=0)))])
    shutil.rmtree(next(tmp_path.glob("runs/fedavg-*-seed2-*")))
    run_bench(wider, wider, Kept(tmp_path), lambda _: None, lambda _: None)
    found = [(one["label"], one["seed"]) for one in records(tmp_path) if "updates" in one["figures"]]
    assert found == [("alone", 1), ("alone", 2), ("fedavg", 1)]


def test_other_settings_are_another_run(tmp_path):
    run(WHOLE, tmp_path)
    longer = replace(WHOLE, tables=[replace(WHOLE.tables[0], settings={**SETTINGS, "updates": 9})])
    begun: list[str] = []
    run_bench(longer, longer, Kept(tmp_path), begun.append, lambda _: None)
    assert len(begun) == 4


def test_a_run_is_known_by_what_decides_its_results(monkeypatch):
    one = make_experiment(strategy="fedasync")
    assert settings_hash(make_experiment(strategy="fedasync", parameters={"proximal": 0.0})) == settings_hash(one)
    assert settings_hash(make_experiment(strategy="fedasync", parameters={"proximal": 0.1})) != settings_hash(one)
    personal = make_experiment(strategy="fedasync", personal=True)
    before = settings_hash(one), settings_hash(personal)
    monkeypatch.setattr(PersonalRule, "revision", 99)
    assert (settings_hash(one) == before[0], settings_hash(personal) == before[1]) == (True, False)
    monkeypatch.setattr(FedAsync, "revision", 99)
    assert settings_hash(one) != before[0]


def test_a_damaged_file_of_records_is_named(tmp_path):
    (tmp_path / "records.json").write_text("[1]")
    with pytest.raises(UserError, match=r"records\.json holds no records"):
        Records(file=tmp_path / "records.json")


@pytest.mark.parametrize("name", RECORDED)
def test_every_published_record_is_one_of_its_benchmark(name):
    path = PUBLISHED / f"{name}.json"
    if not path.exists():
        pytest.skip("nothing is published yet")
    kept = json.loads(path.read_text())["records"]
    known = Records(path)
    bench = benches[name]
    choosing = [] if bench.choosing_seed is None else [bench.choosing_seed]
    found = {
        (table.name, label, seed)
        for table in bench.tables
        for rows, seeds in ((table, bench.all_seeds()), (rivals_of(table), choosing))
        for label, there in measured(rows, seeds, known).items()
        for seed in there
    }
    assert sorted(found) == sorted((one["table"], one["label"], one["seed"]) for one in kept)


def runs_concerto(bench: Bench) -> bool:
    return any(case.settings.get("strategy") == "concerto" for table in bench.tables for case in table.cases)


@pytest.mark.parametrize("name", RECORDED)
def test_reported_seeds_are_none_of_those_that_constants_were_chosen_on(name):
    of_concerto = range(4) if runs_concerto(benches[name]) else ()
    assert not set(benches[name].all_seeds()) & {*of_concerto, *range(10, 23), 49, *range(101, 104)}
    assert not quick_form(benches[name]).recorded


# Going on.


def test_a_bench_that_is_cut_off_within_a_run_goes_on_from_its_checkpoint(tmp_path, every_event):
    whole = Kept(tmp_path / "whole")
    run_bench(WHOLE, WHOLE, whole, lambda _: None, lambda _: None)
    begun: list[str] = []

    def ctrl_c_in_the_third(standing):
        if len(begun) == 3 and standing.updates == 5:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_bench(WHOLE, WHOLE, Kept(tmp_path), begun.append, ctrl_c_in_the_third)
    assert len(records(tmp_path)) == 2
    assert len(list(tmp_path.glob("runs/*/checkpoint.safetensors"))) == 1
    seen: list[int] = []
    again: list[str] = []
    run_bench(WHOLE, WHOLE, Kept(tmp_path), again.append, lambda standing: seen.append(standing.updates))
    assert again == [*begun[2:], "one: fedavg, seed 2 (4 of 4)"]
    assert min(seen[: seen.index(8)]) >= 5
    known = json.loads((whole.directory(WHOLE) / "records.json").read_text())["records"]
    assert [one["digest"] for one in records(tmp_path)] == [one["digest"] for one in known]


def test_runs_side_by_side_leave_what_runs_one_after_the_other_leave(tmp_path, monkeypatch):
    def all_in_this_process(make, tasks, jobs):
        assert jobs == 2
        for place, task in enumerate(tasks):
            yield place, make(task.experiment, task.directory)

    monkeypatch.setattr("polytempo.papers.measuring.side_by_side", all_in_this_process)
    begun: list[str] = []
    run_bench(WHOLE, WHOLE, Kept(tmp_path / "two", jobs=2), begun.append, lambda _: None)
    run(WHOLE, tmp_path / "one")
    assert begun[0] == "one: 4 runs"
    assert [(one["settings"], one["digest"]) for one in records(tmp_path / "two")] == [
        (one["settings"], one["digest"]) for one in records(tmp_path / "one")
    ]
    assert not list(tmp_path.glob("*/runs/*/*models.safetensors"))
