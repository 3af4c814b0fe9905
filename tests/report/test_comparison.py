"""Runs side by side in Python."""

import json
import sys

import numpy as np
import pytest

import polytempo
from polytempo.core.errors import UserError
from polytempo.methods import make_strategy
from polytempo.report.comparison import Comparison
from polytempo.strategies.methods.fedasync import FedAsync

SMALL = {"clients": 4, "updates": 8, "eval_every": 4}


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    out = tmp_path_factory.mktemp("compare")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("polytempo.report.page.write_report", written)
        return polytempo.compare(["fedasync", "fedbuff"], seeds=2, out=out, **SMALL), out


def written(runs, path, *more):
    """A page that takes no time."""
    path.write_text(f"{len(runs)} runs")
    return path


def test_compare_runs_every_method_with_every_seed(compared):
    comparison, out = compared
    assert comparison.methods == ["fedasync", "fedbuff"]
    assert [(run.strategy, run.seed) for run in comparison] == [(m, s) for m in comparison.methods for s in (0, 1)]
    assert (out / "report.html").read_text() == "4 runs"
    assert [run.digest for run in Comparison.load(out)] == [run.digest for run in comparison]
    assert len(Comparison.load(out, out / "fedasync-seed0").runs) == len(comparison.runs)


def test_a_run_is_found_by_method_and_seed(compared):
    comparison, _ = compared
    assert comparison.run("fedbuff", 1) is comparison.runs[3]
    assert comparison.run("fedbuff") is comparison.runs[2]
    with pytest.raises(UserError, match="Did you mean 'fedbuff'"):
        comparison.run("fedbuf")
    with pytest.raises(UserError, match=r"no run with seed 7: expected one of \[0, 1\]"):
        comparison.run("fedbuff", 7)


def test_parameters_go_to_the_strategies_that_have_them():
    comparison = polytempo.compare(["fedasync", "fedbuff"], seeds=1, parameters={"fedbuff.buffer_size": 2}, **SMALL)
    assert comparison.run("fedbuff").config["parameters"]["buffer_size"] == 2


def test_the_frames_of_a_comparison_name_method_and_seed(several):
    frame = Comparison(several).frame()
    assert list(frame)[:2] == ["method", "seed"]
    assert len(frame["seed"]) == sum(len(run.evaluations) for run in several)
    assert set(frame["method"]) == {"standalone", "fedavg", "fedasync", "fedbuff"}


def test_frames_are_arrays_where_pandas_is_missing(several, monkeypatch):
    with_pandas = several[0].frame()
    monkeypatch.setitem(sys.modules, "pandas", None)
    arrays = several[0].frame()
    assert isinstance(arrays, dict)
    assert list(arrays) == list(with_pandas)
    for name, values in arrays.items():
        np.testing.assert_array_equal(values, with_pandas[name])


def test_what_a_run_shows_is_in_its_frames(compared):
    run = compared[0].runs[0]
    np.testing.assert_array_equal(run.frame()["accuracy"], run.over_evaluations("accuracy"))
    assert list(run.frame()["updates"]) == [0, 4, 8]
    updates = run.updates_frame()
    assert list(updates["client"]) == [row["client"] for row in run.update_log]
    clients = run.clients_frame()
    assert list(clients["client"]) == [0, 1, 2, 3]
    np.testing.assert_array_equal(clients["accuracy_used"], run.final_per_client("used"))
    assert sum(clients["updates"]) == 8
    assert sum(clients["steps"]) == run.client_steps


def test_frames_have_the_name_of_the_metric():
    x = np.linspace(0, 1, 80)[:, None]
    data = {"data": (x, x[:, 0]), "goal": "regression", "partition": "iid"}
    run = polytempo.simulate("concerto", **data, **SMALL)
    assert {"mae", "mae_used", "mae_slowest_fifth"} <= set(run.frame())
    assert {"mae_served", "mae_own", "mae_used"} <= set(run.clients_frame())
    assert not any("accuracy" in name for name in [*run.frame(), *run.clients_frame()])


def test_a_client_that_never_handed_in_has_no_staleness():
    run = polytempo.simulate("fedasync", clients=4, updates=2)
    clients = run.clients_frame()
    assert (np.isnan(clients["mean_staleness"]) == (clients["updates"] == 0)).all()
    assert 1 <= np.count_nonzero(clients["updates"]) <= 2


def test_figures_are_those_of_the_command_line(compared):
    figures = compared[0].figures()
    assert json.loads(json.dumps(figures))["fedbuff"]["accuracy"] == figures["fedbuff"]["accuracy"]
    assert figures["fedasync"]["accuracy"] == np.mean([run.accuracy for run in compared[0].runs[:2]])


def test_a_directory_without_runs_is_an_error(tmp_path):
    with pytest.raises(UserError, match="holds no finished run"):
        Comparison.load(tmp_path)


class Own(FedAsync):
    """FedAsync under a name of one's own."""


def test_classes_and_instances_are_compared_beside_names(tmp_path, monkeypatch):
    monkeypatch.setattr("polytempo.report.page.write_report", written)
    some, more = (make_strategy("fedasync", {"mixing": mixing}) for mixing in (0.2, 0.9))
    given = {"seeds": 1, "parameters": {"fedasync.mixing": 0.5}, "out": tmp_path, **SMALL}
    methods = ["fedasync", Own, some, more]
    comparison = polytempo.compare(methods, **given)
    used = [(run.strategy, run.config["parameters"]["mixing"]) for run in comparison]
    assert used == [("fedasync", 0.5), ("Own", 0.6), ("fedasync", 0.2), ("fedasync", 0.9)]
    assert comparison.methods[2:] == ["fedasync (mixing 0.2)", "fedasync (mixing 0.9)"]
    places = {path.parent.name for path in tmp_path.glob("*/result.json")}
    assert places >= {"fedasync-seed0", "Own-seed0"}
    assert len(places) == 4
    assert polytempo.compare([more], **given | {"parameters": {}}).runs[0].digest == comparison.runs[3].digest
    assert {path.parent.name for path in tmp_path.glob("*/result.json")} == places
    assert [run.digest for run in polytempo.compare(methods, **given)] == [run.digest for run in comparison]


@pytest.mark.parametrize(
    ("strategies", "settings", "message"),
    [
        ("fedavg", {}, "strategies is str. Expected a list of names, strategy classes or instances"),
        ([], {}, "strategies is list of 0. Expected a list"),
        (["fedavg", int], {}, "strategies holds class int. Expected names, classes derived from Strategy"),
        (["fedavg"], {"seeds": 0}, "seeds is 0. Expected a whole number of at least 1"),
        (["fedavg"], {"seed": "a"}, "seed: Input should be a valid integer"),
        (
            [make_strategy("fedasync", {})],
            {"parameters": {"mixing": 1}},
            "Unknown parameter of these strategies 'mixing'",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(strategies, settings, message):
    with pytest.raises(UserError) as raised:
        polytempo.compare(strategies, **settings)
    assert message in str(raised.value)


def test_runs_are_run_objects():
    with pytest.raises(UserError, match=r"runs holds str. Expected Run objects: Run.load\(DIR\) reads one"):
        Comparison(("runs/first",)).markdown()
