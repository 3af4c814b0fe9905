"""The command line, as a script outside would use it."""

import json
from dataclasses import replace

import numpy as np
import pytest

from polytempo.bench import benches
from polytempo.cli import main as cli

FIGURES = [
    "strategy",
    "seed",
    "accuracy",
    "accuracy_trained",
    "accuracy_std",
    "accuracy_slowest_fifth",
    "accuracy_fastest_fifth",
    "virtual_time",
    "time_to_target",
    "updates",
    "client_steps",
    "wall_seconds",
    "train_seconds",
    "overhead_seconds",
    "bytes_up",
    "bytes_down",
    "mean_staleness",
    "clusters",
    "ari",
    "digest",
]


@pytest.fixture
def polytempo(tmp_path, monkeypatch, capsys):
    """Call the command line in an empty directory: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["polytempo", *map(str, arguments)])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_run_prints_one_json_object_as_the_last_line(polytempo, tmp_path):
    code, out, _ = polytempo("run", "fedasync", "--clients", 6, "--updates", 12, "--json", "--quiet", "--out", "r")
    assert code == 0
    assert list(json.loads(out.splitlines()[-1])) == FIGURES
    assert (tmp_path / "r/report.html").exists()


def test_every_option_of_the_contract_is_there(polytempo, tmp_path):
    code, out, err = polytempo(
        *("run", "fedbuff", "--data", "digits", "--clients", 6, "--partition", "dirichlet:0.5"),
        *("--devices", "uniform:5", "--model", "mlp", "--participation", "k:3", "--updates", 8, "--time", 1000),
        *("--target", 0.99, "--lr", 0.1, "--momentum", 0.5, "--weight-decay", 0.0001, "--optimizer", "sgd"),
        *("--batch-size", 5, "--steps", 3, "--eval-every", 4, "--seed", 3, "--workers", 1, "--engine", "eager"),
        *("--set", "buffer_size=2", "--set", "staleness=constant", "--out", "here", "--json", "--quiet"),
    )
    assert (code, err) == (0, "")
    result = json.loads(out.splitlines()[-1])
    assert (result["updates"], result["client_steps"], result["seed"]) == (8, 24, 3)
    assert json.loads((tmp_path / "here/config.json").read_text())["parameters"]["buffer_size"] == 2


def test_initial_weights_come_from_a_file(polytempo, tmp_path):
    size = 64 * 100 + 100 + 100 * 10 + 10
    np.save(tmp_path / "zeros.npy", np.zeros(size, np.float32))
    polytempo("run", "fedavg", "--clients", 4, "--updates", 4, "--lr", 1e-9, "--init", "zeros.npy", "--out", "r")
    first = json.loads((tmp_path / "r/evaluations.jsonl").read_text().splitlines()[0])
    assert first["accuracy"] < 0.5
    np.save(tmp_path / "short.npy", np.zeros(5, np.float32))
    code, _, err = polytempo("run", "fedavg", "--clients", 4, "--init", "short.npy")
    assert code == 2
    assert f"expected {size}" in err


def test_an_experiment_file_says_it_all_and_options_win(polytempo, tmp_path):
    (tmp_path / "e.toml").write_text(
        'strategy = "fedasync"\nclients = 5\nupdates = 10\n[parameters]\nmixing = 0.3\n'
        '[[drift]]\nkind = "swap"\nlabels = [[0, 1]]\nat = 5.0\n'
    )
    code, out, err = polytempo("run", "e.toml", "--updates", 6, "--json", "--quiet", "--out", "r")
    assert (code, err) == (0, "")
    assert json.loads(out)["updates"] == 6
    config = json.loads((tmp_path / "r/config.json").read_text())
    assert config["parameters"]["mixing"] == 0.3
    assert (tmp_path / "r/marks.jsonl").read_text().count("drift") == 5


def test_compare_overlays_strategies_and_says_who_is_better_off_than_alone(polytempo, tmp_path):
    code, out, _ = polytempo(
        *("compare", "standalone", "fedbuff", "--seeds", 2, "--clients", 5, "--updates", 10, "--json", "--out", "c"),
        *("--set", "buffer_size=3"),
    )
    assert code == 0
    runs = json.loads(out.splitlines()[-1])["runs"]
    assert [(run["strategy"], run["seed"]) for run in runs] == [
        ("standalone", 0),
        ("standalone", 1),
        ("fedbuff", 0),
        ("fedbuff", 1),
    ]
    page = (tmp_path / "c/report.html").read_text()
    assert "better off" in page.lower()
    code, out, _ = polytempo("report", "c", "--out", "again.html")
    assert code == 0
    assert (tmp_path / "again.html").exists()


@pytest.mark.parametrize("what", ["strategies", "data", "models", "partitions", "devices", "questions", "benches"])
def test_everything_can_be_listed(polytempo, what):
    code, out, _ = polytempo("list", what)
    assert code == 0
    assert len(out.strip().splitlines()) >= 1


def test_the_strategies_are_listed_with_their_parameters(polytempo):
    _, out, _ = polytempo("list", "strategies")
    assert "mixing = 0.6" in out
    assert "staleness = polynomial:0.5" in out


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["run", "fedasink"], "Did you mean 'fedasync'"),
        (["run", "fedasync", "--set", "mixin=1"], "Did you mean 'mixing'"),
        (["run", "fedasync", "--set", "mixing"], "key=value"),
        (["run", "fedasync", "--set", "mixing=2"], "mixing"),
        (["run", "fedasync", "--data", "digitz"], "Did you mean 'digits'"),
        (["run", "fedasync", "--data", "mnist", "--data-dir", "nowhere"], "nowhere/mnist"),
        (["run", "fedasync", "--model", "mpl"], "Did you mean 'mlp'"),
        (["run", "fedasync", "--model", "textcnn"], "ag-news"),
        (["run", "fedasync", "--partition", "dirchlet:1"], "Did you mean 'dirichlet'"),
        (["run", "fedasync", "--partition", "labels:x"], "labels"),
        (["run", "fedasync", "--devices", "slow:a"], "slow"),
        (["run", "fedasync", "--devices", "none.toml"], "none.toml"),
        (["run", "fedasync", "--participation", "k:x"], "k:NUMBER"),
        (["run", "fedasync", "--engine", "warp"], "engine"),
        (["run", "fedasync", "--engine", "fused", "--model", "resnet18"], "fused"),
        (["run", "fedasync", "--optimizer", "sdg"], "sgd"),
        (["run", "fedasync", "--lr", "fast"], "schedule"),
        (["run", "fedasync", "--lr", "-1"], "above 0"),
        (["run", "fedasync", "--epochs", "1", "--steps", "1"], "exclude"),
        (["run", "fedasync", "--clients", "0"], "clients"),
        (["run", "fedasync", "--clients", "5000"], "clients"),
        (["run", "fedasync", "--clients", "many"], "clients"),
        (["run", "fedasync", "--target", "95"], "target"),
        (["run", "fedasync", "--init", "no.npy"], "no.npy"),
        (["run", "fedasync", "--updats", "5"], "--updates"),
        (["run", "none.toml"], "none.toml"),
        (["compare", "fedavg", "fedasink"], "Did you mean 'fedasync'"),
        (["compare", "fedavg", "--set", "mixing=0.5"], "parameter"),
        (["report", "nowhere"], "nowhere"),
        (["list", "strategy"], "Did you mean 'strategies'"),
        (["bench", "baseline"], "Did you mean 'baselines'"),
        (["data", "get", "mnits"], "Did you mean 'mnist'"),
        (["data", "get", "mnist"], "mirror"),
    ],
)
def test_bad_input_is_one_message_on_stderr_and_exit_code_2(polytempo, monkeypatch, arguments, hint):
    monkeypatch.delenv("POLYTEMPO_MIRROR", raising=False)
    code, out, err = polytempo(*arguments)
    assert code == 2
    assert hint in err
    assert "Traceback" not in out + err


def test_a_bench_writes_its_table_and_goes_on_where_it_was(polytempo, tmp_path, monkeypatch):
    full = benches["baselines"]
    shorter = replace(full, quick={**full.quick, "time": 60.0, "clients": 5})
    monkeypatch.setattr(cli, "benches", {"baselines": shorter})
    code, out, _ = polytempo("bench", "baselines", "--quick", "--seeds", 1, "--quiet")
    assert code == 0
    assert "fedbuff" in out
    results = tmp_path / "results/baselines-quick"
    table = json.loads((results / "results.json").read_text())
    assert [row["label"] for row in table["rows"]] == ["standalone", "fedavg", "fedprox", "fedasync", "fedbuff"]
    assert (results / "results.md").read_text().startswith("# CASA")
    assert (results / "results.svg").exists()
    before = (results / "runs/fedavg-seed0/result.json").stat().st_mtime_ns
    polytempo("bench", "baselines", "--quick", "--seeds", 1, "--quiet")
    assert (results / "runs/fedavg-seed0/result.json").stat().st_mtime_ns == before
