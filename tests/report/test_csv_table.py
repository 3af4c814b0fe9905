"""Tables as CSV: numbers in full, empty cells where there is nothing."""

import csv
import io

import pytest

from polytempo.report.csv_table import bench_csv, comparison_csv
from support.runs import made_run


def read(text):
    return list(csv.DictReader(io.StringIO(text)))


def run(strategy, seed, **figures):
    config = {"strategy": strategy, "seed": seed}
    return made_run(config, {"strategy": strategy, "seed": seed, **figures})


def test_a_row_has_the_means_over_seeds_in_full():
    runs = [run("a", 0, accuracy=0.1, clusters=2), run("a", 1, accuracy=0.2), run('b, "2"', 0, accuracy=1 / 3)]
    first, second = read(comparison_csv(runs))
    assert first == {"method": "a", "seeds": "2", "accuracy": "0.15000000000000002", "clusters": "2.0"}
    assert second == {"method": 'b, "2"', "seeds": "1", "accuracy": repr(1 / 3), "clusters": ""}


def test_a_row_has_the_difference_to_the_best():
    runs = [
        run(name, seed, accuracy_used=used + 0.01 * seed) for name, used in (("a", 0.5), ("b", 0.75)) for seed in (0, 1)
    ]
    worse, best = read(comparison_csv(runs))
    assert (worse["reference"], float(worse["difference"]), worse["verdict"]) == ("b", -0.25, "not shown")
    assert float(worse["low"]) <= -0.25 <= float(worse["high"])
    assert (best["reference"], best["difference"], best["p"]) == ("", "", "")


def test_a_figure_that_is_no_number_is_left_out():
    (row,) = read(comparison_csv([run("a", 0, accuracy_per_device={"phone": 0.5}, tryout_winner="solo", updates=3)]))
    assert row == {"method": "a", "seeds": "1", "updates": "3.0"}


def test_a_table_of_a_benchmark_has_mean_deviation_and_the_papers_figure():
    rows = [
        {"label": "casa", "seeds": [0, 1, 2], "accuracy %": {"ours": [90, 92, None], "paper": 95.5}},
        {"label": "fedavg", "seeds": [0], "accuracy %": {"ours": [80]}},
        {"label": "port", "seeds": [0], "accuracy %": {"ours": [None]}},
    ]
    casa, fedavg, port = read(bench_csv({"rows": rows}))
    assert casa["method"] == "casa"
    assert casa["seeds"] == "3"
    assert float(casa["accuracy %"]) == 91
    assert float(casa["accuracy %, deviation"]) == pytest.approx(2**0.5)
    assert casa["accuracy %, paper"] == "95.5"
    assert (fedavg["accuracy %"], fedavg["accuracy %, deviation"], fedavg["accuracy %, paper"]) == ("80.0", "", "")
    assert port["accuracy %"] == ""
