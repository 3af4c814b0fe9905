"""What a user sees of collaboration: who learns from whom, multicasts, and how much is downloaded for them."""

from typing import Any

import numpy as np
import pytest

from polytempo.api import simulate
from polytempo.cli import main as cli
from polytempo.core.errors import UserError
from polytempo.core.orders import Send
from polytempo.report.drawing.timeline import timeline
from polytempo.report.facts.collaboration import chosen_graphs, edges_of, figures_of, layout, neighbours_together
from polytempo.report.facts.speed import slow_clients
from polytempo.report.page import page
from polytempo.report.run import Run
from polytempo.report.table import comparison_rows
from polytempo.sim.experiment import make_experiment
from polytempo.sim.records.evaluation import Stop
from polytempo.sim.records.history import graph_row
from polytempo.sim.run import run_experiment
from polytempo.strategies.base.strategy import parameters
from polytempo.strategies.methods.fedasync import FedAsync
from polytempo.strategies.methods.fedavg import FedAvg
from polytempo.strategies.methods.standalone import Standalone
from polytempo.testing import simulator
from support.plugs import PulledPlugError, pulled_after
from support.runs import made_run


@parameters
class Neighbourly(FedAsync):
    """Each client learns from the one whose update came before its own, and every third update is multicast to all who
    are in training then."""

    def setup(self):
        self.graph = np.full((0, 0), np.nan)
        self.training = {}
        self.before = 0
        self.count = 0

    def order_for(self, client, now):
        self.training[client] = True
        return super().order_for(client, now)

    def updated(self, update, now):
        super().updated(update, now)
        size = max(len(self.graph), update.client + 1)
        self.graph = np.pad(self.graph, (0, size - len(self.graph)), constant_values=np.nan)
        self.graph[update.client] = 0
        self.graph[update.client, [update.client, self.before]] = 0.7, 0.3
        del self.training[update.client]
        self.before = update.client
        self.count += 1
        if self.count % 3 == 0:
            for client in sorted(self.training):
                yield Send(client, self.model.weights, self.model.version)

    def collaboration(self):
        return self.graph


NEIGHBOURLY = {
    "strategy": f"{__file__}:Neighbourly",
    "clients": 6,
    "updates": 30,
    "eval_every": 5,
    "devices": "exponential",
    "engine": "eager",
}


def test_graphs_of_a_run_that_was_killed_are_bit_identical(tmp_path, every_event):
    experiment = make_experiment(**NEIGHBOURLY)
    whole = run_experiment(experiment, tmp_path / "whole")
    for checkpoint_seconds in (0, 40):  # the second kill comes long after its last checkpoint
        with pytest.raises(PulledPlugError):
            run_experiment(experiment, tmp_path / "cut", pulled_after(14), checkpoint_seconds)
    with (tmp_path / "cut/graphs.jsonl").open("a") as file:
        file.write('{"a row": "after the checkpoint"}\n')
    cut = run_experiment(experiment, tmp_path / "cut")
    assert (tmp_path / "cut/graphs.jsonl").read_text() == (tmp_path / "whole/graphs.jsonl").read_text()
    assert len((tmp_path / "whole/graphs.jsonl").read_text().splitlines()) == len(whole.history.evaluations) == 7
    for name in ("downloads_ratio", "multicasts", "refreshes"):
        assert cut.result[name] == whole.result[name] > 1


def test_a_loaded_run_and_a_run_in_memory_have_the_same_graphs(tmp_path):
    done = run_experiment(make_experiment(**NEIGHBOURLY), tmp_path / "run")
    loaded = Run.load(tmp_path / "run")
    kept = made_run(done.config, done.result, done.history.evaluations, graphs=done.history.graphs)
    assert [graph.time for graph in loaded.graphs()] == [row["time"] for row in loaded.evaluations]
    for mine, theirs in zip(loaded.graphs(), kept.graphs(), strict=True):
        assert np.array_equal(mine.matrix(), theirs.matrix(), equal_nan=True)
    last = loaded.graphs()[-1].matrix()
    assert last.shape == (6, 6)
    assert np.nanmax(np.abs(last.sum(axis=1) - 1)) < 1e-9
    assert not loaded.graphs()[0].estimated().any()


def test_a_method_without_a_graph_leaves_none(tmp_path):
    run_experiment(make_experiment(**{**NEIGHBOURLY, "strategy": "fedasync"}), tmp_path / "run")
    assert not (tmp_path / "run/graphs.jsonl").exists()
    assert Run.load(tmp_path / "run").graphs() == []


def test_a_row_that_was_never_estimated_costs_nothing():
    graph = np.full((1000, 1000), np.nan)
    graph[7] = 0
    graph[7, [7, 30]] = 0.75, 0.25000049
    row = graph_row(1.0, 2, graph)
    assert list(row["rows"]) == ["7"]
    assert row["rows"]["7"]["neighbours"].tolist() == [7, 30]
    assert row["rows"]["7"]["weights"].tolist() == [0.75, 0.25]


def test_the_graph_at_a_time_is_that_of_the_last_evaluation_by_then(tmp_path):
    run_experiment(make_experiment(**NEIGHBOURLY), tmp_path / "run")
    run = Run.load(tmp_path / "run")
    times = [graph.time for graph in run.graphs()]
    assert run.graph_at(times[2]).time == run.graph_at((times[2] + times[3]) / 2).time == times[2]
    assert run.graph_at(10 * times[-1]).time == times[-1]
    for time in (-1.0, float("nan")):
        with pytest.raises(UserError, match="expected a time from 0 s on"):
            run.graph_at(time)
    with pytest.raises(UserError, match="no collaboration graph"):
        made_run({}, {"strategy": "fedasync"}).graph_at(1.0)


@pytest.mark.parametrize(("method", "ratio"), [(FedAsync, 1.0), (FedAvg, 1.0), (Standalone, None)])
def test_one_model_per_order_is_a_ratio_of_one(method, ratio):
    sim = simulator(method(), 4, "exponential")
    sim.run()
    assert sim.traffic.downloads_ratio() == ratio
    assert sim.traffic.multicasts == 0


@parameters
class OneRefresh(FedAsync):
    """The first update is sent to clients 1 and 2."""

    def updated(self, update, now):
        super().updated(update, now)
        if self.model.version == 1:
            yield Send(1, self.model.weights, self.model.version)
            yield Send(2, self.model.weights, self.model.version)


def test_refreshes_are_downloads_beyond_one_per_order(tmp_path):
    devices = tmp_path / "devices.toml"
    devices.write_text(
        "jitter = 0.0\n[network]\nlatency = 0.25\ndown = 100.0\n[[speed_change]]\n"
        "at = 0.0\nfactor = 3.0\nclients = [1, 2]\n"
    )
    sim = simulator(OneRefresh(), 3, str(devices), Stop(updates=7))
    sim.run()
    orders = sum(sim.clients.orders)
    assert sim.traffic.downloads_ratio() == (orders + 2) / orders
    assert sim.traffic.multicasts == 1
    refreshes = [mark for mark in sim.history.marks if mark["kind"] == "refresh"]
    assert [mark["client"] for mark in refreshes] == [1, 2]
    assert {mark["ordered"] for mark in refreshes} == {sim.history.updates[0]["time"]}
    assert all(mark["time"] > mark["ordered"] for mark in refreshes)


def graph_run(matrices: list[np.ndarray], groups: np.ndarray | None = None, **result: Any) -> Run:
    """A run of which only the graphs are known, one every 10 seconds from time 0 on."""
    clients = len(matrices[0])
    times = [10.0 * i for i in range(len(matrices))]
    rows = [
        {"time": time, "updates": int(time), "accuracy": 0.5, "per_client": [0.5] * clients, "per_client_group": groups}
        for time in times
    ]
    log = [graph_row(time, int(time), matrix) for time, matrix in zip(times, matrices, strict=True)]
    result = {"strategy": "pace", "seed": 0, "virtual_time": times[-1], **result}
    return made_run({"clients": clients}, result, rows, graphs=log)


def blocks(block_of: np.ndarray, own: float = 0.6) -> np.ndarray:
    """Everybody learns from all others of its block, with equal weights."""
    same = (block_of[:, None] == block_of) & ~np.eye(len(block_of), dtype=bool)
    return (1 - own) * same / same.sum(axis=1, keepdims=True) + own * np.eye(len(block_of))


def nobody(clients: int) -> np.ndarray:
    return np.full((clients, clients), np.nan)


SHUFFLED = np.array([2, 0, 1, 0, 2, 1, 1, 0, 2, 0, 1, 2])


def test_without_groups_the_clients_of_a_block_stand_together():
    (graph,) = graph_run([blocks(SHUFFLED)]).graphs()
    ordered = SHUFFLED[neighbours_together(graph, None)]
    assert np.count_nonzero(np.diff(ordered)) == 2


def test_true_groups_stand_together_and_within_them_the_neighbours():
    (graph,) = graph_run([blocks(SHUFFLED)]).graphs()
    groups = np.arange(12) % 2
    order = neighbours_together(graph, groups)
    assert groups[order].tolist() == [0] * 6 + [1] * 6
    for group in (0, 1):
        within = SHUFFLED[order][groups[order] == group]
        assert np.count_nonzero(np.diff(within)) == len(np.unique(within)) - 1


def test_the_figures_of_a_graph_count_only_clients_that_have_a_row():
    matrix = blocks(SHUFFLED)
    matrix[[0, 5]] = np.nan
    (graph,) = graph_run([matrix]).graphs()
    assert graph.estimated().sum() == 10
    found = figures_of(graph, SHUFFLED)
    assert (found.neighbours, found.own_weight, found.within_group) == pytest.approx((3.0, 0.6, 1.0))
    assert figures_of(graph, np.arange(12)).within_group == 0
    assert np.isnan(figures_of(graph, None).within_group)


def test_edges_are_what_is_more_than_average_and_the_strongest_of_it():
    (graph,) = graph_run([blocks(SHUFFLED)]).graphs()
    edges = edges_of(graph, most=100)
    assert len(edges) == 3 * 6
    assert all(SHUFFLED[edge.first] == SHUFFLED[edge.second] for edge in edges)
    assert len(edges_of(graph, most=5)) == 5
    (alike,) = graph_run([np.full((12, 12), 1 / 12)]).graphs()
    assert edges_of(alike, most=100) == []


def test_linked_clients_are_placed_nearer_than_others_and_always_the_same():
    (graph,) = graph_run([blocks(SHUFFLED)]).graphs()
    places = layout(graph, np.arange(12))
    distance = np.linalg.norm(places[:, None] - places, axis=2)
    same = SHUFFLED[:, None] == SHUFFLED
    assert distance[same].max() < distance[~same].min()
    assert np.array_equal(places, layout(graph, np.arange(12)))


def test_by_default_the_first_graph_the_middle_one_and_the_last_are_shown():
    run = graph_run([nobody(12), nobody(12), *[blocks(SHUFFLED)] * 5])
    assert [graph.time for graph in chosen_graphs(run, ())] == [20, 40, 60]
    assert [graph.time for graph in chosen_graphs(graph_run([nobody(12), blocks(SHUFFLED)]), ())] == [10]


def test_chosen_times_are_shown_in_order_and_once():
    run = graph_run([nobody(12), *[blocks(SHUFFLED)] * 5])
    assert [graph.time for graph in chosen_graphs(run, [45.0, 12.0, 49.9, 900.0])] == [10, 40, 50]


def test_a_time_before_the_first_graph_is_an_error_unless_another_method_has_one():
    early = graph_run([nobody(12), *[blocks(SHUFFLED)] * 5])
    late = graph_run([*[nobody(12)] * 3, *[blocks(SHUFFLED)] * 3], strategy="pfedgraph")
    for time in (-1.0, 5.0, float("nan")):
        with pytest.raises(UserError, match=r"--graph-at .* Expected virtual seconds from 10.0 on"):
            page([early, late], "graphs", [time])
    assert "No graph by then: its first is of 30" in page([early, late], "graphs", [15.0])
    with pytest.raises(UserError, match="None of these runs has a collaboration graph"):
        page([made_run({}, {"strategy": "fedasync", "seed": 0})], "graphs", [15.0])


def images(html: str, figure: str) -> int:
    return html[html.index(f'id="{figure}') :].split("</figure>")[0].count("<image")


@pytest.mark.parametrize("groups", [None, SHUFFLED])
def test_the_page_shows_heat_map_network_and_figures(groups):
    matrix = blocks(SHUFFLED)
    matrix[3] = np.nan
    html = page([graph_run([nobody(12), matrix, matrix, matrix], groups)], "graphs")
    assert "Who learns from whom" in html
    assert images(html, "graphs-") >= 6  # three matrices, three columns of own weights
    assert 'id="network-' in html
    assert "not estimated yet" in html
    assert ("from own group %" in html) == ("group 1" in html) == (groups is not None)


def test_the_page_is_the_same_for_the_same_graphs():
    assert page([graph_run([blocks(SHUFFLED)])], "graphs") == page([graph_run([blocks(SHUFFLED)])], "graphs")


def test_no_section_without_graphs():
    assert "Who learns from whom" not in page([graph_run([nobody(12)])], "graphs")


def test_many_clients_get_only_the_heat_map():
    html = page([graph_run([blocks(np.arange(301) % 7)])], "graphs")
    assert 'id="graphs-' in html
    assert 'id="network-' not in html
    assert "only for up to 300 clients" in html


def test_slow_devices_are_those_that_need_twice_the_median():
    run = graph_run([blocks(SHUFFLED)])
    log = [
        {"client": c, "began": 0.0, "time": 9.0 if c == 4 else 1.5 if c == 5 else 1.0, "steps": 1} for c in range(11)
    ]
    slow = slow_clients(made_run(run.config, run.result, run.evaluations, log))
    assert np.flatnonzero(slow).tolist() == [4]


def test_the_report_command_shows_graphs_at_chosen_times(tmp_path, monkeypatch, capsys):
    simulate(out=tmp_path / "run", **NEIGHBOURLY)
    assert "Who learns from whom" in (tmp_path / "run/report.html").read_text()
    times = [graph.time for graph in Run.load(tmp_path / "run").graphs()]

    def report(*times):
        options = [word for time in times for word in ("--graph-at", str(time))]
        monkeypatch.setattr(
            "sys.argv", ["polytempo", "report", str(tmp_path / "run"), "--out", f"{tmp_path}/r.html", *options]
        )
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code

    assert report(times[2] + 1e-6, times[4]) == 0
    assert images((tmp_path / "r.html").read_text(), "graphs-") == 2 * 2 + 2  # and two scales
    assert report(-3) == 2
    assert "--graph-at -3" in capsys.readouterr().err


def timeline_run(marks: list[dict[str, Any]], **result: Any) -> Run:
    log = [{"client": c, "began": 0.0, "time": 100.0 + c, "steps": 1, "staleness": 0} for c in range(4)]
    rows = [{"time": 100.0, "updates": 4, "accuracy": 0.5, "per_client": [0.5] * 4}]
    return made_run({"clients": 4}, {"strategy": "pace", "seed": 0, "virtual_time": 104.0, **result}, rows, log, marks)


def refresh(time: float, client: int, ordered: float) -> dict[str, Any]:
    return {"time": time, "kind": "refresh", "client": client, "ordered": ordered}


def test_a_multicast_is_one_line_through_its_refreshes():
    marks = [refresh(31.0, 0, 30.0), refresh(30.5, 2, 30.0), refresh(30.5, 3, 30.0), refresh(60.0, 1, 60.0)]
    axes = timeline(timeline_run(marks)).axes[0]
    line = axes.lines[0].get_xydata()
    assert line[:3].tolist() == [[30.5, 0], [30.5, 1], [31.0, 3]]  # rows: the slowest client, 3, is on top
    assert np.isnan(line[3:]).all()
    keys = {"sent together (broadcast)", "refresh of a client in training"}
    assert keys <= {text.get_text() for text in axes.get_legend().texts}


def test_the_page_counts_multicasts():
    html = page([timeline_run([refresh(30.0, 0, 30.0)], multicasts=12, refreshes=37)], "multicasts")
    assert "Broadcasts in the whole run: 12; refreshes: 37" in html
    timeline_svg = html.split("timeline-", 1)[1].split("</svg>")[0]
    assert "refresh of a client in training" in timeline_svg
    assert "sent together" not in timeline_svg  # a single refresh needs no line
    assert "broadcast" not in page([timeline_run([], multicasts=0, refreshes=0)], "none")


def test_the_table_shows_downloads_only_where_somebody_downloads_more():
    one, more, alone = (
        graph_run([nobody(4)], strategy=name, downloads_ratio=ratio)
        for name, ratio in (("fedasync", 1.0), ("pace", 1.0375), ("standalone", None))
    )
    title = "downloads vs FedAsync"
    assert [row.cells[title].text for row in comparison_rows([one, more, alone])] == ["1.000", "1.038", "–"]
    assert all(title not in row.cells for row in comparison_rows([one, alone]))
