"""What the benchmarks of Concerto read off a run, and which rows they have."""

from collections.abc import Sequence

import pytest

from polytempo.papers import benches
from polytempo.papers.promises import promises
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
        assert len(labels) == 16 + ("cdfl" in labels)
        assert ("cdfl" in labels) == ("proxies" in table.settings)


# What Concerto promises.


def figures(used: float, **more: float | None) -> dict[str, float | None]:
    usual = {"accuracy": used - 0.1, "accuracy_trained": used - 0.05, "better_off": 0.3, "worse_off": 0.02}
    return {"accuracy_used": used, **usual, "bytes_down": 100.0, "time_to_alone": 0.4, **more}


def promised(**rows: dict[str, float | None]) -> list[str]:
    """The cells of a world with these rows, of one seed."""
    table = benches["natural"].tables[0]
    usual = {"concerto": figures(0.9), "standalone": figures(0.8), "fedasync": figures(0.85)}
    given = {**usual, **{label.replace("_", "-"): row for label, row in rows.items()}}
    measured = {case.label: {1: given[case.label]} if case.label in given else {} for case in table.cases}
    page = promises([table], {table.name: measured})
    return [cell.strip() for cell in page.splitlines()[-1].strip("|").split("|")]


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


def test_a_rival_is_compared_on_the_seeds_that_it_has():
    table = benches["natural"].tables[0]
    rows = {case.label: {} for case in table.cases}
    rows |= {"concerto": {1: figures(0.9), 2: figures(0.7)}, "standalone": {1: figures(0.5), 2: figures(0.5)}}
    rows["fedavg"] = {1: figures(0.89), 5: figures(0.99)}
    cells = promises([table], {table.name: rows}).splitlines()[-1].strip("|").split("|")
    assert [cell.strip() for cell in cells[1:6]] == ["2", "80.0", "50.0", "fedavg used 89.0", "+1.0"]


def test_whether_a_rival_helps_is_seen_on_the_seeds_that_it_has():
    """Everybody does well on seed 1. There FedAsync is worse than alone, and no method is better anywhere."""
    table = benches["natural"].tables[0]
    rows = {case.label: {} for case in table.cases}
    used = {1: 0.9, 2: 0.8, 3: 0.8}
    for label in ("concerto", "standalone"):
        rows[label] = {seed: figures(of, time_to_alone=None) for seed, of in used.items()}
    rows["fedasync"] = {1: figures(0.85)}
    assert promises([table], {table.name: rows}).splitlines()[-1].strip("| ").split(" | ")[-1] == "–"
