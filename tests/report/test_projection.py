"""Where clients stand before and after a drift: sketches of their models, and what a report makes of them."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polytempo import simulate
from polytempo.report.drawing import figures
from polytempo.report.drawing.drift import before_and_after
from polytempo.report.facts.projection import FEW, SHOWN, drifts, project, projections
from polytempo.report.page import page
from polytempo.report.run import Run
from polytempo.sim import run as running
from polytempo.sim.experiment import make_experiment
from polytempo.sim.records.sketches import DIGITS, FOLLOWED, SIZE, Sketches
from polytempo.sim.run import run_experiment
from polytempo_client.streams import stream
from support.runs import made_run

DRIFT = [{"kind": "mixture", "clients": 0.5, "at": [100.0]}]
SETTINGS: dict[str, Any] = {"clients": 8, "partition": "groups:2", "updates": 48, "eval_every": 8, "drift": DRIFT}
SKETCHES = "sketches.jsonl"


def moved_run(drift_times: list[float], evaluations: int = 11, clients: int = 4) -> Run:
    """Evaluations every 10 s. Client i stands at (t, i) of its sketch at time t, even clients are in cluster 0 and odd
    ones in cluster 1, and client 1 drifts."""
    rows = [
        {
            "time": 10.0 * i,
            "updates": clients * i,
            "accuracy": 0.5,
            "clusters": 2,
            "per_client": np.full(clients, 0.5),
            "per_client_cluster": np.arange(clients) % 2,
            "per_client_group": None,
        }
        for i in range(evaluations)
    ]
    sketched = [
        {
            "time": row["time"],
            "updates": row["updates"],
            "clients": list(range(clients)),
            "sketches": [[row["time"], client, *[0.0] * (SIZE - 2)] for client in range(clients)],
        }
        for row in rows[1:]
    ]
    marks = [{"time": time, "kind": "drift", "client": 1} for time in drift_times]
    result = {"strategy": "ifca-async", "seed": 0, "virtual_time": rows[-1]["time"]}
    return made_run({"clients": clients}, result, rows, marks=marks, sketches=sketched)


# Sketches


@given(st.integers(0, 10**6))
@settings(max_examples=30, derandomize=True)
def test_sketches_are_about_as_far_from_each_other_as_the_models(seed: int) -> None:
    models = torch.from_numpy(stream(seed, "models").normal(size=(8, 3_000))).float() * torch.arange(1, 9)[:, None]
    sketches = Sketches(torch.ones(3_000), 8, seed)
    known = np.array([sketches.sketch(model) for model in models])
    pairs = np.triu_indices(8, k=1)
    far = torch.cdist(models, models).numpy()[pairs]
    ratios = np.linalg.norm(known[pairs[0]] - known[pairs[1]], axis=1) / far
    assert np.abs(ratios - 1).max() < 5 / np.sqrt(SIZE)
    assert np.abs(ratios - 1).mean() < 1.5 / np.sqrt(SIZE)


def test_the_initial_model_has_a_sketch_of_zeros() -> None:
    initial = torch.linspace(-1, 1, 500)
    assert not Sketches(initial, 3, seed=1).sketch(initial).any()


def test_a_row_has_the_clients_that_trained_since_the_last_one() -> None:
    sketches = Sketches(torch.zeros(500), 3, seed=0)
    assert sketches.take_row(0.0, 0) is None
    for client in (2, 0, 2):
        sketches.keep(client, torch.full((500,), float(client + 1)))
    row = sketches.take_row(7.0, 3)
    assert row is not None
    assert (row["time"], row["updates"], row["clients"].tolist()) == (7.0, 3, [0, 2])
    assert row["sketches"] == pytest.approx(np.array([[1.0], [3.0]]) * sketches.sketch(torch.ones(500)), rel=1e-3)
    assert all(number == float(f"{number:.{DIGITS}g}") for number in row["sketches"].flat)
    assert sketches.take_row(8.0, 3) is None


def test_of_many_clients_some_are_followed_spread_over_all() -> None:
    sketches = Sketches(torch.zeros(10), 2 * FOLLOWED, seed=0)
    for client in range(2 * FOLLOWED):
        sketches.keep(client, torch.ones(10))
    row = sketches.take_row(1.0, 2 * FOLLOWED)
    assert row is not None
    assert len(row["clients"]) == FOLLOWED
    assert (row["clients"][0], row["clients"][-1], np.diff(row["clients"]).max()) == (0, 2 * FOLLOWED - 1, 3)


def test_a_run_whose_data_stay_leaves_no_sketches(tmp_path: Path) -> None:
    run = simulate("fedasync", **{**SETTINGS, "drift": []}, out=tmp_path)
    assert not run.sketch_log
    assert not (tmp_path / SKETCHES).exists()


def test_a_run_from_its_directory_has_the_same_sketches(tmp_path: Path) -> None:
    run = simulate("ifca-async", **SETTINGS, out=tmp_path)
    read = Run.load(tmp_path)
    assert [row["updates"] for row in read.sketch_log] == [row["updates"] for row in run.evaluations[1:]]
    for mine, its in zip(run.sketch_log, read.sketch_log, strict=True):
        assert np.array_equal(mine["clients"], its["clients"])
        assert np.array_equal(mine["sketches"], its["sketches"])


def test_a_run_that_was_cut_off_ends_with_the_same_sketches(tmp_path: Path, every_event: None) -> None:
    experiment = make_experiment(strategy="ifca-async", **SETTINGS)
    whole = run_experiment(experiment, tmp_path / "whole")

    def plug(standing: running.Progress) -> None:
        if standing.updates == 29:  # between two evaluations, after the drift
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, tmp_path / "cut", plug, checkpoint_seconds=0)
    resumed = run_experiment(experiment, tmp_path / "cut")
    assert (tmp_path / "cut" / SKETCHES).read_bytes() == (tmp_path / "whole" / SKETCHES).read_bytes()
    for mine, its in zip(resumed.history.sketches, whole.history.sketches, strict=True):
        assert np.array_equal(mine["sketches"], its["sketches"])


# Projection


def test_drifts_are_known_by_time_and_those_of_the_beginning_left_out() -> None:
    marks = [(50.0, 2), (50.0, 1), (20.0, 3), (0.0, 0)]
    rows = [{"time": time, "kind": "drift", "client": client} for time, client in marks]
    run = made_run({}, {}, marks=[*rows, {"time": 30.0, "kind": "left", "client": 0}])
    assert drifts(run) == {20.0: [3], 50.0: [2, 1]}


def test_before_is_the_last_evaluation_before_the_drift_and_after_the_last_before_the_next() -> None:
    found = projections(moved_run([35.0, 70.0]))
    assert [(p.drift, p.before.time, p.after.time) for p in found] == [(35.0, 30.0, 60.0), (70.0, 60.0, 100.0)]
    assert [p.drifted.tolist() for p in found] == [[1], [1]]
    assert found[0].before.clusters.tolist() == [0, 1, 0, 1]


def test_both_panels_lie_in_one_plane_that_keeps_distances_and_says_what_it_shows() -> None:
    found = project(moved_run([35.0]), 35.0)
    assert found is not None
    assert found.after.places - found.before.places == pytest.approx(np.tile([70.0, 0.0], (4, 1)))  # from 30 s to 100 s
    assert np.diff(found.before.places[:, 1]) == pytest.approx([1.0, 1.0, 1.0])
    assert sum(found.variance) == pytest.approx(1.0)
    assert found.variance[0] == pytest.approx(35.0**2 / (35.0**2 + 1.25))


def test_a_client_keeps_its_place_while_it_has_not_trained_and_has_none_before() -> None:
    run = moved_run([35.0])
    for row, trained in zip(run.sketch_log, ([0, 1], [], [2], [0, 3]), strict=False):
        row["clients"], row["sketches"] = trained, [row["sketches"][client] for client in trained]
    found = project(run, 35.0, until=45.0)
    assert found is not None
    assert (found.before.clients.tolist(), found.after.clients.tolist()) == ([0, 1, 2], [0, 1, 2, 3])
    assert found.before.places[1] == pytest.approx(found.after.places[1])
    assert found.before.places[0, 0] != pytest.approx(found.after.places[0, 0])


def test_there_is_nothing_to_show_without_an_evaluation_before_and_between_drifts() -> None:
    assert projections(moved_run([])) == []
    assert project(moved_run([5.0]), 5.0) is None  # nobody had trained at 0 s
    assert project(moved_run([31.0, 39.0]), 31.0, until=39.0) is None
    assert [p.drift for p in projections(moved_run([31.0, 39.0]))] == [39.0]


def test_at_most_a_few_drifts_are_shown_and_of_many_the_run_as_a_whole() -> None:
    several = projections(moved_run([15.0, 35.0, 55.0, 75.0, 95.0]))
    assert (len(several), several[0].drift, several[-1].drift) == (SHOWN, 15.0, 95.0)
    (whole,) = projections(moved_run([21.0 + 3 * i for i in range(FEW + 1)]))
    assert (whole.before.time, whole.after.time) == (20.0, 100.0)


# Report


def test_the_page_shows_the_clients_before_and_after_a_drift() -> None:
    run = simulate("ifca-async", **SETTINGS)
    text = page([run, simulate("fedasync", **SETTINGS)], "drift")
    section = text[text.index("<h2>Clients before and after a drift") :]
    section = section[: section.index("</section>")]
    assert section.count("<h3>") == section.count("<svg ") == 1  # FedAsync has no clusters
    for words in ("before the drift at 100 s", "after it: the evaluation at", "data changed", "group 1", "cluster 0"):
        assert words in section
    assert re.search(r"first component \(\d+% of the variance\)", section)


@pytest.mark.parametrize("strategy", ["fedasync", "ifca-async"])
def test_without_clusters_or_drift_there_is_no_such_section(strategy: str) -> None:
    assert "before and after a drift" not in page([simulate(strategy, **{**SETTINGS, "drift": []})], "steady")


def test_a_cluster_has_one_colour_in_all_panels_and_a_ring_marks_who_drifted() -> None:
    axes = before_and_after(projections(moved_run([35.0]))).axes
    before, after = ([line.get_color() for line in panel.lines] for panel in axes[:2])
    assert before == after
    assert len(set(before[:2])) == 2
    ring = axes[0].lines[-1]
    assert (len(ring.get_xdata()), ring.get_markerfacecolor()) == (1, "none")


def test_panels_have_one_scale() -> None:
    before, after = before_and_after(projections(moved_run([35.0]))).axes[:2]
    assert (before.get_xlim(), before.get_ylim()) == (after.get_xlim(), after.get_ylim())


def test_more_clusters_than_colours_share_one() -> None:
    run = moved_run([35.0], clients=30)
    for row in run.evaluations:
        row["per_client_cluster"] = np.maximum(np.arange(30) - 9, 0)
    labels = [text.get_text() for text in before_and_after(projections(run)).axes[-1].get_legend().get_texts()]
    assert (labels[0], labels[-2:]) == ("cluster 0", ["smaller clusters", "data changed"])


@pytest.mark.parametrize(("times", "lines"), [([], 0), ([30.0, 30.0, 60.0], 2), ([float(t) for t in range(1, 9)], 0)])
def test_accuracy_over_time_shows_when_data_drifted_if_that_is_readable(times: list[float], lines: int) -> None:
    axes = figures.accuracy_over_time([moved_run(times)]).axes[0]
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    upright = [line for line in axes.lines if len(set(line.get_xdata())) == 1 and line.get_linestyle() == "--"]
    assert (len(upright), labels.count("drift")) == (lines, int(lines > 0))


def test_a_row_of_sketches_is_plain_json(tmp_path: Path) -> None:
    simulate("ifca-async", **SETTINGS, out=tmp_path)
    row = json.loads((tmp_path / SKETCHES).read_text().splitlines()[-1])
    assert list(row) == ["time", "updates", "clients", "sketches"]
    assert np.array(row["sketches"]).shape == (len(row["clients"]), SIZE)
