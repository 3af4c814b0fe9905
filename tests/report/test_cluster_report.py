"""What a user sees of clusters: in the metrics, in the run directory and in the report."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex

from polytempo import simulate
from polytempo.core.branch import Branch
from polytempo.report.drawing.clusters import similarity
from polytempo.report.drawing.colours import group_colours
from polytempo.report.drawing.sizes import cluster_sizes
from polytempo.report.drawing.tree import cluster_tree, label_rows
from polytempo.report.facts.lineage import described, lineage
from polytempo.report.page import page
from polytempo.report.run import Run
from polytempo.report.table import comparison_rows
from polytempo.sim import run as running
from polytempo.sim.experiment import make_experiment
from polytempo.sim.records.measures import accuracy_per_cluster, purity
from polytempo.sim.run import run_experiment
from polytempo.strategies.parts.clusters import Clustered
from polytempo_client.streams import stream
from support.dividing import Counting
from support.runs import made_run

SETTINGS: dict[str, Any] = {"clients": 8, "partition": "groups:2", "updates": 48, "eval_every": 8}


class Parity(Counting):
    """Splits even clients from odd ones after 20 updates."""

    def regroup(self, now):
        if self.received == 20:
            members = sorted(self.clusters.members[0])
            self.clusters.split(0, [members[::2], members[1::2]], now, {"eigengap": 0.3, "decay": 0.2})

    def similarity(self):
        """Of the first six clients only, and clients 0 and 1 were never compared."""
        known = np.fromfunction(lambda i, j: 1.0 - 0.5 * ((i + j) % 2), (6, 6))
        known[0, 1] = known[1, 0] = np.nan
        return known


class Watching(Clustered):
    """Compares the first two clients with all others, and never splits."""

    def updated(self, update, now):
        self.clusters.branch(update.client).mix(update.weights, 0.5)

    def similarity(self):
        known = np.full((8, 8), np.nan)
        known[:2], known[:, :2] = 0.5, 0.5
        return known


class Moving(Clustered):
    """Two clusters from the beginning; a client moves to the other one with every update."""

    def first_branches(self, setting):
        return {0: Branch(setting.initial), 1: Branch(setting.initial + 0.01)}

    def joined(self, client, now):
        self.clusters.assign(client, 0)
        return super().joined(client, now)

    def updated(self, update, now):
        self.clusters.assign(update.client, 1 - self.cluster_of(update.client))


def simulated(name: str, **settings: Any) -> Run:
    return simulate(f"{__name__}:{name}", **{**SETTINGS, **settings})


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parity")


@pytest.fixture(scope="module")
def parity(directory: Path) -> Run:
    return simulated("Parity", out=directory)


def clustered_run(clients: int, splits: list[dict], similarity: np.ndarray | None = None, groups: int = 4) -> Run:
    """A run of which only the clusters are known: one at time 0, and those after all splits at time 100."""
    cluster_of = np.zeros(clients)
    for split in splits:
        for part, members in zip(split["parts"], split["members"], strict=True):
            cluster_of[members] = part
    rows = [
        {
            "time": time,
            "updates": time,
            "accuracy": 0.5,
            "clusters": len(np.unique(of)),
            "purity": 0.5,
            "ari": 0.0,
            "accuracy_per_cluster": {str(int(number)): 0.5 for number in np.unique(of)},
            "per_client": np.full(clients, 0.5),
            "per_client_cluster": of,
            "per_client_group": np.arange(clients) % groups,
        }
        for time, of in ((0, np.zeros(clients)), (100, cluster_of))
    ]
    result = {"strategy": "casa", "seed": 0, "virtual_time": 100.0, "clusters": rows[-1]["clusters"], "purity": 0.5}
    return made_run({"clients": clients}, result, rows, splits=splits, similarity=similarity)


def bipartitions(clients: int, count: int) -> list[dict]:
    """Every split halves the largest cluster."""
    members = {0: list(range(clients))}
    splits = []
    for i in range(count):
        cluster = max(members, key=lambda number: len(members[number]))
        whole, parts = members.pop(cluster), (2 * i + 1, 2 * i + 2)
        members |= {parts[0]: whole[::2], parts[1]: whole[1::2]}
        halves = [members[part] for part in parts]
        why = {"eigengap": 0.3, "decay": 0.2}
        splits.append({"time": 2.0 * i + 5, "cluster": cluster, "parts": list(parts), "members": halves, "why": why})
    return splits


# Metrics


def test_purity_counts_the_clients_in_the_largest_group_of_their_cluster() -> None:
    assert purity(np.array([0, 0, 0, 7, 7, 2]), np.array([0, 0, 1, 1, 1, 0])) == pytest.approx(5 / 6)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=30))
def test_purity_is_at_least_that_of_one_cluster_and_one_for_singletons(pairs: list[tuple[int, int]]) -> None:
    clusters_of, groups = np.array(pairs).T
    together = purity(np.zeros(len(pairs)), groups)
    assert together <= purity(clusters_of, groups) <= purity(np.arange(len(pairs)), groups) == 1


def test_accuracy_per_cluster_is_the_mean_over_its_clients_and_nothing_for_singletons() -> None:
    served = np.array([0.5, 0.7, 0.9])
    assert accuracy_per_cluster(np.array([3, 10, 3]), served) == pytest.approx({"3": 0.7, "10": 0.7})
    assert accuracy_per_cluster(np.array([3, 10, 4]), served) is None


def test_an_evaluation_says_who_is_in_which_cluster_and_how_well_each_is_served(parity: Run) -> None:
    first, last = parity.evaluations[0], parity.evaluations[-1]
    assert (first["clusters"], list(first["accuracy_per_cluster"])) == (1, ["0"])
    assert (last["clusters"], list(last["accuracy_per_cluster"])) == (2, ["1", "2"])
    assert last["per_client_cluster"].tolist() == [1.0, 2.0] * 4
    assert last["accuracy_per_cluster"]["2"] == pytest.approx(last["per_client"][1::2].mean())
    assert parity.purity == last["purity"] == purity(last["per_client_cluster"], last["per_client_group"])


def test_without_true_groups_there_is_no_purity() -> None:
    run = simulated("Parity", partition="iid")
    assert (run.purity, run.ari, run.evaluations[-1]["per_client_group"]) == (None, None, None)


# Run directory


def test_a_run_holds_its_splits_and_a_similarity_of_all_clients(parity: Run) -> None:
    (split,) = parity.splits
    assert (split["cluster"], split["parts"], split["members"]) == (0, [1, 2], [[0, 2, 4, 6], [1, 3, 5, 7]])
    assert split["why"] == {"eigengap": 0.3, "decay": 0.2}
    assert parity.similarity is not None
    assert parity.similarity.shape == (8, 8)
    assert np.isnan(parity.similarity[0, 1])
    assert np.isnan(parity.similarity[6:]).all()


def test_a_run_from_its_directory_has_the_same_clusters(parity: Run, directory: Path) -> None:
    read = Run.load(directory)
    assert (read.splits, read.purity) == (parity.splits, parity.purity)
    assert np.array_equal(read.similarity, parity.similarity, equal_nan=True)
    assert read.per_client("per_client_cluster", -1).tolist() == parity.per_client("per_client_cluster", -1).tolist()


def test_an_older_run_without_splits_and_similarity_loads(parity: Run, directory: Path, tmp_path: Path) -> None:
    for name in ("config.json", "result.json", "evaluations.jsonl", "updates.jsonl"):
        shutil.copy(directory / name, tmp_path)
    older = Run.load(tmp_path)
    assert (older.splits, older.similarity) == ((), None)


def test_a_method_that_compares_nobody_leaves_no_similarity(tmp_path: Path) -> None:
    run = simulate("fedasync", clients=4, updates=4, out=tmp_path)
    assert run.similarity is None
    assert not (tmp_path / "similarity.npy").exists()
    assert (tmp_path / "splits.jsonl").read_text() == ""


def test_a_clustered_run_that_was_cut_off_ends_bit_identical(tmp_path: Path, every_event: None) -> None:
    experiment = make_experiment(strategy=f"{__name__}:Parity", **SETTINGS)
    whole = run_experiment(experiment, tmp_path / "whole")

    def plug(standing: running.Progress) -> None:
        if standing.updates == 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, tmp_path / "cut", plug, checkpoint_seconds=0)
    resumed = run_experiment(experiment, tmp_path / "cut")
    assert resumed.result["digest"] == whole.result["digest"]
    assert resumed.splits == whole.splits == [json.loads((tmp_path / "cut/splits.jsonl").read_text())]


# Report


def test_the_page_shows_tree_similarity_fit_and_accuracy_of_the_clusters(parity: Run) -> None:
    text = page([parity, simulate("fedasync", **SETTINGS), simulate("standalone", **SETTINGS)], "clusters")
    section = text[text.index("<h2>Clusters") : text.index("<h2>Who trained when")]
    assert section.count("<svg ") == 2 + 4
    for words in ("0 → 1, 2: eigengap 0.3, decay 0.2", "cluster 1: 4 clients", "never compared", "adjusted Rand index"):
        assert words in section
    assert section.count("<h3>") == 1


@pytest.mark.parametrize("name", ["fedasync", "standalone"])
def test_one_model_for_all_or_one_for_each_are_no_clusters(name: str) -> None:
    run = simulate(name, **SETTINGS)
    assert not run.has_clusters()
    assert "<h2>Clusters" not in page([run], name)
    assert not {"clusters", "purity", "ARI"} & set(comparison_rows([run])[0].cells)


def test_the_table_has_clusters_purity_and_ari_once_a_method_clusters(parity: Run) -> None:
    rows = comparison_rows([parity, simulate("fedasync", **SETTINGS), simulate("standalone", **SETTINGS)])
    cells = [[row.cells[title].text for title in ("clusters", "purity", "ARI")] for row in rows]
    assert cells == [["2", f"{parity.purity:.2f}", f"{parity.ari:.2f}"], ["1", "0.50", "0.00"], ["8", "–", "–"]]


def test_clusters_that_clients_move_between_are_shown_by_size() -> None:
    run = simulated("Moving")
    assert run.has_clusters()
    axes = cluster_sizes(run, "#0072b2").axes[0]
    assert axes.get_ylabel() == "clients"
    assert [text.get_text().split(":")[0] for text in axes.texts] == ["cluster 0", "cluster 1"]
    assert "The clients of each cluster at every evaluation." in page([run], "moving")


def test_clusters_begin_and_end_with_splits_and_keep_their_clients_apart() -> None:
    run = clustered_run(20, bipartitions(20, 7))
    family = lineage(run)
    assert len(family) == 15
    assert (family[0].began, family[0].ended, family[0].parts) == (0.0, 5.0, (1, 2))
    assert (family[1].began, family[14].ended) == (5.0, 100.0)
    leaves = [cluster.clients for cluster in family.values() if not cluster.parts]
    assert sorted(np.concatenate(leaves).tolist()) == list(range(20))


def test_a_cluster_that_no_split_explains_is_known_from_the_evaluations() -> None:
    run = simulated("Moving")
    assert {number: (c.began, c.ended) for number, c in lineage(run).items()} == {
        0: (0.0, run.virtual_time),
        1: (run.evaluations[1]["time"], run.virtual_time),
    }


@pytest.mark.parametrize(("clients", "splits"), [(4, 1), (20, 19), (100, 20), (300, 150)])
def test_a_tree_of_many_splits_stays_a_readable_size(clients: int, splits: int) -> None:
    run = clustered_run(clients, bipartitions(clients, splits))
    width, height = cluster_tree(run, "#0072b2").get_size_inches()
    assert (width, height < 12) == (10, True)


@given(st.lists(st.tuples(st.floats(0, 8), st.floats(0.1, 3)), max_size=25).map(sorted))
def test_no_label_above_the_tree_covers_another_or_its_line(labels: list[tuple[float, float]]) -> None:
    rows = label_rows(labels)
    for i, (start, length) in enumerate(labels):
        for j in range(i + 1, len(labels)):
            if start <= labels[j][0] < start + length:
                assert rows[i] > rows[j]


def test_the_heat_map_is_ordered_by_cluster_and_shows_who_was_never_compared() -> None:
    splits = bipartitions(8, 1)
    alike = np.fromfunction(lambda i, j: ((i + j) % 2 == 0) * 1.0, (8, 8))
    alike[0, 1] = alike[1, 0] = np.nan  # even client 0 comes first, odd client 1 fifth
    figure = similarity(clustered_run(8, splits, alike), "#0072b2")
    assert figure is not None
    shown = figure.axes[0].images[0].get_array()
    assert shown[:4, :4].min() == shown[4:, 4:].min() == 1.0
    assert shown[:4, 4:].max() == 0.0
    assert np.argwhere(np.ma.getmaskarray(shown)).tolist() == [[0, 4], [4, 0]]


def test_the_bands_of_the_tree_change_colour_when_a_drift_changes_groups() -> None:
    whole = {"time": 40.0, "cluster": 0, "parts": [1, 2], "members": [[0, 1], [2, 3]], "why": {}}
    first, last = clustered_run(4, [whole], groups=2).evaluations
    middle = [{**first, "time": 20.0}, {**last, "time": 60.0, "per_client_group": np.array([1, 1, 1, 1])}]
    last = {**last, "per_client_group": np.array([1, 1, 1, 1])}
    run = made_run({"clients": 4}, {"virtual_time": 100.0}, [first, *middle, last], splits=[whole])
    axes = cluster_tree(run, "#0072b2").axes[0]

    def ends(group: int) -> list[float]:
        bands = [band for band in axes.collections if to_hex(band.get_facecolor()[0]) == group_colours(run, "")[group]]
        return [max(x for x, y in band.get_paths()[0].vertices if y > bottom(band)) for band in bands]

    def bottom(band: Any) -> float:
        return band.get_paths()[0].vertices[:, 1].min() + 1e-9

    assert ends(0) == pytest.approx([40, 60, 60], abs=0.5)
    assert ends(1) == pytest.approx([40, 100, 100], abs=0.5)
    assert "after a drift they change at the next evaluation" in page([run], "drift")
    assert "after a drift" not in page([clustered_run(4, [whole])], "no drift")


def test_a_tree_says_that_clients_joined_after_a_split_only_where_some_did() -> None:
    splits = bipartitions(8, 2)
    assert "a newcomer" not in page([clustered_run(8, splits)], "complete")
    splits[0]["members"] = [members[:-1] for members in splits[0]["members"]]
    assert "a newcomer" in page([clustered_run(8, splits)], "newcomers")


@pytest.mark.parametrize(
    ("splits", "words"),
    [(1, "lasted; thin lines are clusters that split."), (7, "each cluster that did not split, while it lasted.")],
)
def test_the_caption_of_courses_names_only_the_lines_that_are_drawn(splits: int, words: str) -> None:
    text = page([clustered_run(20, bipartitions(20, splits))], "courses")
    assert words in text
    assert ("thin lines are clusters" in text) == (splits == 1)


def test_clusters_that_never_split_have_no_thin_lines() -> None:
    assert "Accuracy of each cluster while it lasted.<" in page([simulated("Moving")], "moving")


def test_a_method_that_compared_clients_and_never_split_shows_how_alike_they_are() -> None:
    run = simulated("Watching")
    text = page([run], "watching")
    section = text[text.index("<h2>Clusters") : text.index("<h2>Who trained when")]
    assert "never split; 46.4 % of the pairs of clients were compared." in section  # 13 of 28
    assert section.count("<svg ") == 1
    assert "clients, by true group" in section


def test_a_heat_map_of_nobody_is_left_out() -> None:
    nobody = np.full((8, 8), np.nan)
    np.fill_diagonal(nobody, 1)
    assert "similarity" not in page([clustered_run(8, bipartitions(8, 1), nobody)], "nobody")


def test_thousands_of_clients_do_not_blow_up_the_page() -> None:
    clients = 2_001
    noise = stream(0, "noise").normal(size=(clients, clients))
    text = page([clustered_run(clients, bipartitions(clients, 40), noise)], "many")
    assert max(map(len, re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL))) < 400_000


def test_the_page_with_clusters_is_whole_in_itself_and_repeats(parity: Run, directory: Path) -> None:
    text = page([parity], "clusters")
    assert text == page([Run.load(directory)], "clusters")
    assert not re.search(r"https?://|<script|<link|@import|<img", text)
    assert all(target.startswith(("#", "data:image/png;")) for target in re.findall(r'(?:href|src)="([^"]*)"', text))
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert len(ids) == len(set(ids))


def test_a_cluster_is_described_by_its_size_and_groups() -> None:
    groups = np.array([0, 0, 1, 2, 1, 0])
    assert described(3, np.array([0, 1]), groups) == "cluster 3: 2 clients, all of group 0"
    assert described(3, np.array([2]), groups) == "cluster 3: 1 client, group 1"
    assert described(4, np.arange(6), groups) == "cluster 4: 6 clients, 3 of group 0, 2 of group 1, …"
    assert described(4, np.arange(6), np.full(6, -1)) == "cluster 4: 6 clients"
