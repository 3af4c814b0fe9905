"""What travels when: totals, one row per moment of virtual time, peaks, and how the report shows them."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polytempo.api import simulate
from polytempo.core.orders import Report, Send
from polytempo.core.state import load, save
from polytempo.report.drawing.traffic import traffic_rate
from polytempo.report.facts.traffic import Resolution, rate, resolution_of
from polytempo.report.page import page
from polytempo.report.run import Run
from polytempo.report.table import comparison_rows
from polytempo.sim.experiment import make_experiment
from polytempo.sim.records.evaluation import Stop
from polytempo.sim.records.history import History
from polytempo.sim.records.traffic import Traffic, busiest_minute
from polytempo.sim.run import run_experiment
from polytempo.strategies import make_strategy, strategies
from polytempo.strategies.base.strategy import parameters
from polytempo.strategies.methods.fedasync import FedAsync
from polytempo.strategies.methods.fedavg import FedAvg
from polytempo.testing import simulator
from support.plugs import PulledPlugError, pulled_after
from support.runs import made_run

MODEL = 4 * 15  # bytes of the linear model of ``simulator``


def row(time, up=0, down=0, uploads=0, downloads=0):
    return {"time": time, "up": up, "down": down, "uploads": uploads, "downloads": downloads}


def moved(time, up=0, down=0):
    """A row by the numbers of its models."""
    return row(time, up * MODEL, down * MODEL, up, down)


@pytest.fixture
def slow_network(tmp_path):
    """No jitter, one second per step, 60 bytes in a second each way after a latency of one: a model takes 2 s."""
    path = tmp_path / "devices.toml"
    path.write_text("jitter = 0.0\n[network]\nup = 60.0\ndown = 60.0\nlatency = 1.0\n")
    return str(path)


def rows_of(strategy, clients, devices, stop):
    sim = simulator(strategy, clients, devices, stop)
    sim.run()
    return sim.history.traffic


# What is counted.


def test_an_upload_counts_when_it_arrives_and_a_download_when_it_is_sent(slow_network):
    # 2 s down, 4 steps, 2 s up
    assert rows_of(FedAsync(), 1, slow_network, Stop(updates=2)) == [moved(0, down=1), moved(8, 1, 1), moved(16, 1, 1)]


def test_all_that_travels_at_one_moment_is_one_row():
    rows = rows_of(FedAvg(), 5, "homogeneous", Stop(updates=10))
    downs = [one for one in rows if one["downloads"]]
    assert rows[0] == moved(0, down=5)
    assert {one["downloads"] for one in downs} == {5}  # FedAvg sends to all at once
    assert len({one["time"] for one in rows}) == len(rows)


@parameters
class Talkative(FedAsync):
    """With the first update, of client 0, a model goes out to everybody and a Report to client 2."""

    def updated(self, update, now):
        super().updated(update, now)
        if self.model.version == 1:
            for client in range(3):
                yield Send(client, self.model.weights, self.model.version)
            yield Report(2)


def test_models_sent_count_also_where_they_come_too_late_and_a_report_is_no_transfer(slow_network):
    with Path(slow_network).open("a") as file:
        file.write("[[speed_change]]\nat = 0.0\nfactor = 3.0\nclients = [1]\n")
        file.write("[[speed_change]]\nat = 0.0\nfactor = 1.1\nclients = [2]\n")
    sim = simulator(Talkative(), 3, slow_network, Stop(time=11.0))
    sim.run()
    # At 8 s client 0 has handed in and gets its next order, client 1 trains until 14 s, client 2 is uploading.
    assert sim.history.traffic == [moved(0, down=3), moved(8, up=1, down=4), moved(pytest.approx(8.4), 1, 1)]
    assert [(mark["kind"], mark["client"]) for mark in sim.history.marks] == [("refresh", 1)]
    assert sim.traffic.multicasts == 1


def test_an_order_with_several_models_is_one_download_of_all_their_bytes():
    sim = simulator(make_strategy("ifca", {"k": 3}), 2, stop=Stop(updates=2))
    sim.run()
    assert sim.history.traffic[0] == row(0.0, 0, 2 * 3 * MODEL, 0, 2)


@pytest.mark.parametrize("name", sorted(strategies))
def test_totals_are_the_sums_of_the_rows_whatever_the_method(name, slow_network):
    sim = simulator(make_strategy(name, {}), 5, slow_network, Stop(updates=15))
    sim.run()
    rows, traffic = sim.history.traffic, sim.traffic
    totals = [sum(one[key] for one in rows) for key in ("up", "down", "uploads", "downloads")]
    assert totals == [traffic.bytes_up, traffic.bytes_down, traffic.uploads, traffic.downloads]
    times = [one["time"] for one in rows]
    assert times == sorted(set(times))
    if sim.strategy.travels:
        assert traffic.uploads == sim.updates
        assert traffic.downloads >= traffic.orders > 0
        assert all(one["uploads"] + one["downloads"] > 0 for one in rows)
    else:
        assert rows == []


# Peaks.


def test_the_busiest_minute_begins_at_a_whole_minute():
    rows = [row(0.0, down=30), row(59.9, up=5, down=1), row(60.0, up=6), row(100.0, up=6), row(185.0, up=11)]
    assert busiest_minute(rows, "up") == 12  # 60 s and 100 s, though 11 + 6 lie within 60 s of neither
    assert busiest_minute(rows, "down") == 31
    assert busiest_minute([row(59.0, up=7), row(61.0, up=7)], "up") == 7
    assert busiest_minute([row(3.0, down=1)], "up") == 0
    assert busiest_minute([], "up") is None


@given(st.lists(st.tuples(st.floats(0, 1000), st.integers(0, 100)), min_size=1))
def test_a_peak_is_never_less_than_the_average_nor_more_than_all(transfers):
    rows = [row(time, up=nbytes) for time, nbytes in sorted(transfers)]
    total = sum(nbytes for _, nbytes in transfers)
    minutes = rows[-1]["time"] // 60 + 1
    assert total / minutes <= busiest_minute(rows, "up") <= total


def test_the_peak_of_fedavg_is_a_model_for_everybody_at_once():
    slow = simulate("fedavg", clients=8, updates=24, devices="homogeneous", steps=100, engine="eager")
    model_bytes = slow.bytes_up // 24
    assert slow.peak_down == 8 * model_bytes  # a round takes longer than a minute
    assert slow.downloads == 24 + 8
    assert slow.downloads_per_minute == pytest.approx(60 * 32 / slow.virtual_time)
    assert slow.uploads_per_minute == pytest.approx(60 * 24 / slow.virtual_time)


def test_a_method_that_does_not_travel_has_no_traffic(tmp_path):
    alone = simulate("standalone", clients=4, updates=8, partition="iid", engine="eager", out=tmp_path / "run")
    assert (alone.uploads, alone.downloads, alone.uploads_per_minute) == (0, 0, 0)
    assert alone.peak_up is alone.peak_down is None
    assert not (tmp_path / "run/traffic.jsonl").exists()
    assert not Run.load(tmp_path / "run").traffic_log


def test_a_run_of_no_time_has_no_rate():
    figures = Traffic(History(), MODEL).figures(0.0)
    assert figures["uploads_per_minute"] is figures["downloads_per_minute"] is None


# Runs that are cut off.


def test_a_run_cut_in_the_middle_of_a_moment_has_the_same_rows(tmp_path, slow_network):
    def build():
        return simulator(FedAvg(), 4, slow_network, Stop(updates=12))

    whole, events = build(), []
    whole.run(lambda: events.append(whole.now))
    assert whole.history.traffic == [moved(0, down=4), moved(8, 4, 4), moved(16, 4, 4), moved(24, 4, 4)]
    for cut in range(1, len(events) + 1):
        sim, seen = build(), []

        def pull_the_plug(sim=sim, seen=seen, cut=cut):
            seen.append(sim.now)
            if len(seen) == cut:
                save({"state": sim.save_state(), "rows": len(sim.history.traffic)}, tmp_path / "state")
                raise PulledPlugError

        with pytest.raises(PulledPlugError):
            sim.run(pull_the_plug)
        resumed, saved = build(), load(tmp_path / "state")
        resumed.history.traffic.extend(sim.history.traffic[: saved["rows"]])
        resumed.history.evaluations.extend(sim.history.evaluations)
        resumed.load_state(saved["state"])
        resumed.run()
        assert resumed.history.traffic == whole.history.traffic, cut


def test_the_traffic_file_of_a_killed_run_is_bit_identical(tmp_path, every_event):
    experiment = make_experiment(strategy="fedavg", clients=5, updates=40, engine="eager", devices="exponential")
    whole = run_experiment(experiment, tmp_path / "whole").result
    for checkpoint_seconds in (0, 40):  # the second kill comes long after its last checkpoint
        with pytest.raises(PulledPlugError):
            run_experiment(experiment, tmp_path / "cut", pulled_after(14), checkpoint_seconds)
    cut = run_experiment(experiment, tmp_path / "cut").result
    assert (tmp_path / "cut/traffic.jsonl").read_bytes() == (tmp_path / "whole/traffic.jsonl").read_bytes()
    assert {name: cut[name] for name in Traffic(History(), 1).figures(1.0)}.items() <= whole.items()
    assert Run.load(tmp_path / "cut").traffic_log == [
        json.loads(line) for line in (tmp_path / "whole/traffic.jsonl").read_text().splitlines()
    ]


# The report.


def traffic_run(rows, strategy="fedasync", seed=0, end=None, **result):
    rows = [row(*one) for one in rows]
    figures = {"strategy": strategy, "seed": seed, "virtual_time": rows[-1]["time"] if end is None else end}
    return made_run({"clients": 2}, figures | result, traffic=rows)


@pytest.mark.parametrize(
    ("seconds", "resolution"),
    [
        (7_200, Resolution(60, 2)),
        (4_800, Resolution(60, 1)),
        (1_200, Resolution(60, 1)),
        (1_199, Resolution(20, 1)),
        (80, Resolution(1, 1)),
        (4, Resolution(0.05, 1)),
        (10_000_000, Resolution(60, 5_000)),
    ],
)
def test_bins_are_whole_minutes_unless_the_run_is_too_short(seconds, resolution):
    found = resolution_of(seconds)
    assert (found.seconds, found.per_bin) == (pytest.approx(resolution.seconds), resolution.per_bin)


def test_bins_show_their_mean_and_their_busiest_minute():
    run = traffic_run([(0, 1e6), (30, 1e6), (70, 0, 8e6), (125, 6e6), (200, 1e6)])
    up = rate(run, "up", Resolution(60, 2))
    assert up.mean.tolist() == [1, 3.5]
    assert up.busiest.tolist() == [2, 6]
    assert (up.peak, up.peak_at) == (6, 180)
    down = rate(run, "down", Resolution(60, 2))
    assert (down.busiest.tolist(), down.peak_at) == ([8, 0], 60)


def test_the_page_shows_the_rate_and_its_peaks():
    spikes = traffic_run([(60 * k, 0, 12e6) for k in range(0, 40, 10)], "fedavg", end=2_400, peak_down=12e6, peak_up=0)
    even = traffic_run([(60 * k, 3e6, 3e6) for k in range(40)], end=2_400, peak_down=3e6, peak_up=3e6)
    alone = made_run({"clients": 2}, {"strategy": "standalone", "seed": 0})
    runs = [spikes, even, alone]
    html = page(runs, "rates")
    figure = html.split("rate-", 1)[1].split("</svg>")[0]
    assert all(text in figure for text in ("12.0 down", "3.00 up", "fedavg", "fedasync"))
    assert "standalone" not in figure
    assert "Traffic over time in MB per minute" in html
    assert "scaled row by row" in html
    assert [one.cells["peak MB/min down"].text for one in comparison_rows(runs)] == ["12.0", "3.00", "–"]
    assert "Traffic over time" not in page([alone], "nothing travels")
    assert "peak MB/min up" not in comparison_rows([alone])[0].cells


def test_short_runs_are_shown_in_seconds_and_say_so():
    html = page([traffic_run([(0, 0, 5e6), (3, 1e6), (38, 1e6)])], "short")
    assert "Traffic over time in MB per 0.5 s (minutes would be too few to see)" in html


def test_each_method_fills_its_strip_and_its_peaks_are_marked():
    runs = [traffic_run([(0, 0, 1e9), (2_400, 1e9)], "fedavg"), traffic_run([(0, 0, 1e3), (2_400, 1e3)])]
    axes = traffic_rate(runs).axes[0]
    peaks = [line.get_xydata()[0].tolist() for line in axes.lines if line.get_marker() in "^v"]
    tips = [tip for _, tip in peaks]
    assert np.allclose(tips, [-0.42, 0.42, 1 - 0.42, 1 + 0.42])
    assert [at for at, _ in peaks] == [2_430, 30, 2_430, 30]
