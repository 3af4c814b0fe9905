"""Expansions and merges of clusters: in a run, in its directory and in the report."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from polytempo import simulate
from polytempo.report.drawing.sizes import cluster_sizes
from polytempo.report.facts.clusters import clusters_over_time
from polytempo.report.facts.lineage import lineage
from polytempo.report.page import page
from polytempo.report.run import Run
from polytempo.sim.directory import config_of, prepare
from polytempo.sim.experiment import make_experiment
from support.dividing import Counting
from support.runs import made_run

SETTINGS: dict[str, Any] = {"clients": 8, "partition": "groups:2", "updates": 48, "eval_every": 8}
STRATEGY = f"{__name__}:Regrouped"


class Regrouped(Counting):
    """Clients 0 and 1 begin a cluster of their own after 20 updates; after 30 all others follow them."""

    def regroup(self, now):
        if self.received == 20:
            self.clusters.expand(0, [0, 1], now, {"divergence": 0.3})
        if self.received == 30:
            self.clusters.merge(1, 0, self.clusters.branches[1].weights, now, {"divergence": 0.1})


def regrouped_run(regroupings: list[dict], cluster_of: list[list[int]]) -> Run:
    """A run of which only the clusters at evaluations every 10 s are known, and how they came about."""
    rows = [
        {
            "time": 10.0 * i,
            "updates": i,
            "accuracy": 0.5,
            "clusters": len(set(of)),
            "accuracy_per_cluster": {str(number): 0.5 for number in of},
            "per_client": np.full(len(of), 0.5),
            "per_client_cluster": np.array(of),
        }
        for i, of in enumerate(cluster_of)
    ]
    result = {"strategy": "echopfl", "seed": 0, "virtual_time": rows[-1]["time"], "clusters": rows[-1]["clusters"]}
    return made_run({"clients": len(cluster_of[0])}, result, rows, regroupings=regroupings)


def regrouping(time: float, kind: str, source: int, target: int, clients: list[int]) -> dict:
    return {"time": time, "kind": kind, "source": source, "target": target, "clients": clients, "why": {}}


TWICE = [regrouping(14.0, "expansion", 0, 1, [0, 1]), regrouping(33.0, "merge", 0, 1, [2])]
COURSE = [[0, 0, 0], [0, 0, 0], [1, 1, 0], [1, 1, 0], [1, 1, 1]]


# Run directory


def test_a_run_holds_its_expansions_and_merges_in_order(tmp_path: Path) -> None:
    run = simulate(STRATEGY, **SETTINGS, out=tmp_path)
    (expansion, merge) = run.regroupings
    assert [(row["kind"], row["source"], row["target"]) for row in run.regroupings] == [
        ("expansion", 0, 1),
        ("merge", 0, 1),
    ]
    assert (expansion["clients"], sorted(merge["clients"])) == ([0, 1], [2, 3, 4, 5, 6, 7])
    assert (expansion["why"], merge["why"]) == ({"divergence": 0.3}, {"divergence": 0.1})
    assert 0 < expansion["time"] < merge["time"] < run.virtual_time
    assert (run.expansions, run.merges, run.clusters) == (1, 1, 1)
    assert Run.load(tmp_path).regroupings == run.regroupings
    assert run.has_clusters()


def test_a_run_without_regroupings_leaves_no_file_of_them(tmp_path: Path) -> None:
    run = simulate("ifca-async", **SETTINGS, out=tmp_path)
    assert not (tmp_path / "regroupings.jsonl").exists()
    assert (Run.load(tmp_path).regroupings, run.expansions, run.merges) == ((), 0, 0)


def test_a_run_that_begins_anew_forgets_the_regroupings_of_the_last_one(tmp_path: Path) -> None:
    simulate(STRATEGY, **SETTINGS, out=tmp_path)
    assert (tmp_path / "regroupings.jsonl").exists()
    prepare(tmp_path, config_of(make_experiment(strategy=STRATEGY, **SETTINGS)))
    assert not (tmp_path / "regroupings.jsonl").exists()


# Report


def test_regroupings_are_marked_above_the_bands_with_what_they_were() -> None:
    bands, marks = cluster_sizes(regrouped_run(TWICE, COURSE), "#0072b2").axes
    shown = {line.get_marker(): list(line.get_xdata()) for line in marks.lines}
    assert shown == {"^": [14.0], "v": [33.0]}
    assert [text.get_text() for text in marks.texts] == ["0 → 1 (2 clients)", "0 → 1 (1 client)"]
    assert [text.get_text() for text in marks.get_legend().get_texts()] == ["expansion", "merge"]
    assert bands.get_xlim() == marks.get_xlim() == (0, 40)


def test_a_cluster_that_ended_has_its_number_in_its_band_and_no_label_at_the_end() -> None:
    bands = cluster_sizes(regrouped_run(TWICE, COURSE), "#0072b2").axes[0]
    assert [text.get_text() for text in bands.texts] == ["0", "cluster 1: 3 clients"]


def test_regroupings_of_one_time_share_a_label_and_crowded_ones_have_none() -> None:
    at_once = [regrouping(14.0, "expansion", 0, 1, [0]), regrouping(14.0, "expansion", 0, 2, [1])]
    course = [[0, 0, 0], [0, 0, 0], [1, 2, 0]]
    marks = cluster_sizes(regrouped_run(at_once, course), "#0072b2").axes[1]
    assert [text.get_text() for text in marks.texts] == ["2 expansions"]
    crowded = [regrouping(10 + 0.01 * i, "merge", i + 1, 0, [1]) for i in range(500)]
    marks = cluster_sizes(regrouped_run(crowded, course), "#0072b2").axes[1]
    assert len(marks.lines[0].get_xdata()) == 500
    assert 1 < len(marks.texts) < 30


def test_the_caption_counts_expansions_and_merges_and_says_what_the_marks_are() -> None:
    text = page([regrouped_run([*TWICE, regrouping(35.0, "expansion", 1, 2, [2])], COURSE)], "regrouped")
    assert "▲ is an expansion" in text
    assert "In the whole run there were 2 expansions and 1 merge." in text
    assert "expansion" not in page([regrouped_run([], COURSE)], "moved")


def test_a_cluster_begins_with_its_expansion_and_ends_with_its_merge() -> None:
    family = lineage(regrouped_run(TWICE, COURSE))
    assert {number: (c.began, c.ended) for number, c in family.items()} == {0: (0.0, 33.0), 1: (14.0, 40.0)}


def test_of_very_many_clusters_those_at_the_end_are_shown_over_time() -> None:
    course = [[2 * i, 2 * i + 1, 2 * i + 1] for i in range(20)]
    merges = [regrouping(10.0 * i - 1, "merge", 2 * i - 2, 2 * i, [0]) for i in range(1, 20)]
    run = regrouped_run(merges, course)
    assert list(clusters_over_time(run)) == [38, 39]
    assert "Accuracy of each cluster that there is at the end." in page([run], "many")


def test_hundreds_of_clusters_that_came_and_went_do_not_blow_up_the_page() -> None:
    course = [[i + client for client in range(8)] for i in range(400)]
    moves = [regrouping(10.0 * i - 1, "expansion", i + 6, i + 7, [7]) for i in range(1, 400)]
    text = page([regrouped_run(moves, course)], "many")
    longest = max(map(len, re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)))
    assert longest < 600_000  # 4.7 million if each band went on after its end


def test_a_run_of_two_evaluations_can_be_drawn() -> None:
    assert cluster_sizes(regrouped_run([], [[0, 0], [0, 1]]), "#0072b2").axes[0].texts
