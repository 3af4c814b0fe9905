"""What the benchmarks of Concerto read off a run, and which rows they have."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from polytempo.papers import benches
from polytempo.papers.bench import Table, rivals_of
from polytempo.papers.measuring import needed_runs
from polytempo.papers.promises import Rival, WorldFigures, best_rival, promises
from polytempo.papers.rivals import time_to_alone
from polytempo.report.run import Run
from support.runs import made_run


def run(used: Sequence[float], every: float = 10.0) -> Run:
    """An evaluation of the used models every so many seconds."""
    return made_run({}, {}, [{"time": every * i, "accuracy_used": accuracy} for i, accuracy in enumerate(used)])


def test_the_time_to_standalones_last_accuracy_is_relative_to_its_own():
    alone = run([0.1, 0.5, 0.7, 0.8, 0.9])
    assert time_to_alone(run([0.1, 0.9, 0.95, 0.95, 0.95]), alone) == 0.25
    assert time_to_alone(alone, alone) == 1.0
    assert time_to_alone(run([0.1, 0.5, 0.9], every=40.0), alone) == 2.0


def test_a_run_that_never_gets_there_has_no_time():
    assert time_to_alone(run([0.1, 0.89]), run([0.1, 0.9])) is None


@pytest.mark.parametrize("name", ["natural", "concerto"])
def test_every_world_has_the_same_rivals_and_cdfl_where_it_applies(name):
    for table in benches[name].tables:
        labels = [case.label for case in table.cases]
        assert {"standalone", "standalone-again", "fedasync", "concerto", "casa + personal"} <= set(labels)
        assert len(labels) == 19 + ("cdfl" in labels)
        assert ("cdfl" in labels) == ("proxies" in table.settings)


# What Concerto promises.


def figures(used: float, **more: float | None) -> dict[str, float | None]:
    usual = {"accuracy": used - 0.1, "accuracy_trained": used - 0.05, "better_off": 0.3, "worse_off": 0.02}
    return {"accuracy_used": used, **usual, "bytes_down": 100.0, "time_to_alone": 0.4, **more}


Rows = dict[str, dict[int, dict[str, float | None]]]


TABLE = benches["natural"].tables[0]


def rows_of(given: Rows, table: Table = TABLE) -> Rows:
    return {case.label: given.get(case.label, {}) for case in table.cases}


def cells(reported: Rows, choosing: Rows) -> list[str]:
    """Every rival but those given got nothing right on the choosing seed."""
    others = {case.label: {1: figures(0.2)} for case in TABLE.cases}
    page = promises([WorldFigures("A world", rows_of(reported), rows_of({**others, **choosing}, rivals_of(TABLE)))])
    return [cell.strip() for cell in page.splitlines()[-1].strip("|").split("|")]


def promised(**rows: dict[str, float | None]) -> list[str]:
    """The cells of a world with these rows, of one seed; on the choosing seed they are the same."""
    usual = {"concerto": figures(0.9), "standalone": figures(0.8), "fedasync": figures(0.85)}
    given = {**usual, **{label.replace("_", "-"): row for label, row in rows.items()}}
    return cells({label: {4: row} for label, row in given.items()}, {label: {1: row} for label, row in given.items()})


def test_a_world_in_which_concerto_keeps_all_promises():
    line = promised(standalone_again=figures(0.8, worse_off=0.01))
    assert line[2:] == ["90.0", "80.0", "fedasync used 85.0", "+5.0", "30", "2", "1", "1.00", "0.40", "–"]


@pytest.mark.parametrize(
    ("rows", "missed"),
    [
        ({"casa": figures(0.7, accuracy_trained=0.904)}, "margin"),
        ({"concerto": figures(0.9, worse_off=0.05), "standalone_again": figures(0.8, worse_off=0.02)}, "worse"),
        ({"concerto": figures(0.9, better_off=0.01)}, "worse"),
        ({"concerto": figures(0.9, bytes_down=106.0)}, "MB"),
        ({"concerto": figures(0.9, time_to_alone=0.6)}, "time"),
        ({"concerto": figures(0.9, time_to_alone=None)}, "time"),
        ({"concerto": figures(0.8, time_to_alone=None), "fedasync": figures(0.805)}, "margin"),
    ],
    ids=["a rival's own model", "chance", "better off", "bytes", "time", "never there", "where nothing helps"],
)
def test_a_promise_is_missed_by(rows, missed):
    assert promised(**rows)[-1] == missed


def test_the_best_rival_is_picked_on_the_choosing_seed_alone():
    choosing = {"fedavg": {1: figures(0.95)}, "casa": {1: figures(0.5, accuracy_trained=0.96)}}
    assert best_rival(rows_of(choosing)) == Rival("casa", "accuracy_trained")
    labels = {case.label for case in rivals_of(TABLE).cases}
    assert not labels & {"standalone", "standalone-again", "concerto", "casa + personal"}
    assert len(labels) == 12
    reported = {label: {4: figures(used)} for label, used in {"concerto": 0.9, "standalone": 0.8, "casa": 0.85}.items()}
    line = cells({**reported, "fedavg": {4: figures(0.95)}}, choosing)
    assert line[4:6] == ["casa own 80.0", "+10.0"]


def test_a_rival_is_compared_on_the_seeds_that_it_has():
    reported = {
        "concerto": {4: figures(0.9), 5: figures(0.7)},
        "standalone": {4: figures(0.5), 5: figures(0.5)},
        "fedavg": {4: figures(0.89), 8: figures(0.99)},
    }
    line = cells(reported, {"fedavg": {1: figures(0.9)}})
    assert line[1:6] == ["1", "90.0", "50.0", "fedavg used 89.0", "+1.0"]


def test_without_runs_of_the_best_rival_there_is_no_margin():
    line = cells({"concerto": {4: figures(0.9)}, "standalone": {4: figures(0.5)}}, {"fedala": {1: figures(0.95)}})
    assert line[4:6] == ["fedala used –", "–"]


def test_a_rival_that_is_the_best_of_some_is_shown_as_that():
    reported = {label: {4: figures(0.9)} for label in ("concerto", "standalone", "fedala")}
    world = WorldFigures("A world", rows_of(reported), rows_of({"fedala": {1: figures(0.9)}}, rivals_of(TABLE)))
    assert "| fedala used 90.0 (of 1 of 12) |" in promises([world])


def test_bytes_and_chance_are_compared_on_the_seeds_that_both_have():
    reported = {
        "concerto": {4: figures(0.9), 5: figures(0.9, worse_off=0.5, bytes_down=300.0)},
        "standalone": {4: figures(0.5), 5: figures(0.5)},
        "standalone-again": {4: figures(0.5, worse_off=0.02)},
        "fedasync": {4: figures(0.6), 5: figures(0.6)},
        "fedala": {4: figures(0.7)},
    }
    line = cells(reported, {"fedala": {1: figures(0.95)}})
    assert (line[1], line[9], line[-1]) == ("1", "1.00", "–")


def test_only_rivals_are_measured_on_the_choosing_seed():
    bench = benches["natural"]
    needed = needed_runs(bench, TABLE)
    seeds = {case.label: {seed for seed, one in needed if one is case} for case in TABLE.cases}
    assert seeds["fedala"] == {1, 4, 5, 6}
    assert seeds["concerto"] == seeds["standalone"] == seeds["casa + personal"] == {4, 5, 6}


def test_a_choosing_seed_is_not_reported():
    with pytest.raises(ValueError, match="is one of those that it reports"):
        replace(benches["natural"], choosing_seed=5)
