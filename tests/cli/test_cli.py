"""The command line, as a script outside would use it."""

import json
from dataclasses import replace

import numpy as np
import pytest

from polytempo.cli import benching
from polytempo.cli import main as cli
from polytempo.papers import benches
from polytempo.sim.experiment import make_experiment
from polytempo.strategies import strategies
from support.figures import FIGURES


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


def test_the_target_may_or_may_not_be_the_end(polytempo):
    short = (
        "run",
        "fedasync",
        "--clients",
        4,
        "--updates",
        8,
        "--target",
        0.01,
        "--eval-every",
        2,
        "--json",
        "--quiet",
    )
    ended = [
        json.loads(polytempo(*short, *flag)[1])["updates"] for flag in (["--stop-at-target"], ["--no-stop-at-target"])
    ]
    assert ended == [0, 8]


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
    methods = json.loads(out.splitlines()[-1])
    assert list(methods) == ["standalone", "fedbuff"]
    names = ["accuracy", "accuracy_trained", "accuracy_used", "better_off", "equal", "worse_off"]
    assert [list(figures) for figures in methods.values()] == [[*names, "against_best"]] * 2
    seeds = [json.loads((tmp_path / f"c/fedbuff-seed{seed}/result.json").read_text()) for seed in (0, 1)]
    for name in names[:3]:
        assert methods["fedbuff"][name] == pytest.approx(np.mean([result[name] for result in seeds]))
    assert sum(methods["fedbuff"][name] for name in names[3:]) == pytest.approx(1)
    page = (tmp_path / "c/report.html").read_text()
    assert "better off" in page.lower()
    code, out, _ = polytempo("report", "c", "--out", "again.html")
    assert code == 0
    assert (tmp_path / "again.html").exists()


def test_compare_without_standalone_says_nothing_of_who_is_better_off(polytempo):
    _, out, _ = polytempo("compare", "fedavg", "--seeds", 1, "--clients", 4, "--updates", 4, "--json", "--quiet")
    figures = json.loads(out)["fedavg"]
    assert [figures[name] for name in ("better_off", "equal", "worse_off")] == [None] * 3
    assert 0 < figures["accuracy_used"] <= 1


@pytest.mark.parametrize(
    "what", ["strategies", "data", "models", "partitions", "devices", "device-types", "questions", "benches"]
)
def test_everything_can_be_listed(polytempo, what):
    code, out, _ = polytempo("list", what)
    assert code == 0
    assert len(out.strip().splitlines()) >= 1


def test_the_strategies_are_listed_with_their_parameters(polytempo):
    _, out, _ = polytempo("list", "strategies")
    assert "mixing = 0.6" in out
    assert "staleness = polynomial:0.5" in out
    assert "hinge:A:B" in out  # and no emoji
    warned = " ".join(out.split()).count("Do not read its figures as those of the authors' method")
    assert warned == sum(cls.reconstructed for _, cls in strategies.items()) > 0


def write_bad_files(folder):
    for name in ("dir.toml", "dir.py"):
        (folder / name).mkdir()
    (folder / "latin.toml").write_bytes(b'strategy = "fedasync" # \xe9\n')
    (folder / "number.toml").write_text('strategy = "fedasync"\nparameters = 3\n')
    (folder / "nameless.toml").write_text("clients = 3\n")
    (folder / "misplaced.toml").write_text('strategy = "casa"\npreset = "paper"\n')
    (folder / "outside.toml").write_text('strategy = "fedasync"\nout = "here"\n')
    (folder / "syntax.py").write_text("class Mine(:\n")
    (folder / "name.py").write_text("import os\n\nclass Mine(Strategie):\n    pass\n")
    (folder / "kinds.py").write_text(
        "from polytempo.strategies import Strategy\n\n\nclass Mine(Strategy):\n    k: 'Nope' = 3\n\n\n"
        "class Needy(Strategy):\n    k: int\n"
    )
    (folder / "leave.py").write_text("raise SystemExit(3)\n")
    (folder / "never.dev").write_text("[availability]\non = inf\noff = 1.0\n")
    (folder / "lost.dev").write_text("[dropout]\nprobability = 1.0\n")


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
        (["run", "fedasync", "--engine", "fusd"], "Did you mean 'fused'"),
        (["run", "fedasync", "--engine", "fused", "--model", "resnet18"], "fused"),
        (["run", "fedasync", "--optimizer", "adm"], "Did you mean 'adam'"),
        (["run", "fedasync", "--lr", "fast"], "schedule"),
        (["run", "fedasync", "--lr", "-1"], "above 0"),
        (["run", "fedasync", "--epochs", "1", "--steps", "1"], "exclude"),
        (["run", "fedasync", "--optimizer", "adam", "--momentum", "0.9"], "adam has its own"),
        (["run", "latest.py"], "latest.py:NAME"),
        (["run", "fedasync", "--data", ""], "data set"),
        (["run", "fedasync", "--clients", "0"], "clients"),
        (["run", "fedasync", "--clients", "5000"], "clients"),
        (["run", "fedasync", "--clients", "many"], "clients"),
        (["run", "fedasync", "--target", "95"], "target"),
        (["run", "fedasync", "--init", "no.npy"], "no.npy"),
        (["run", "fedasync", "--updats", "5"], "--updates"),
        (["run", "none.toml"], "none.toml"),
        (["run", "dir.toml"], "not a plain file"),
        (["run", "latin.toml"], "latin.toml is no valid TOML"),
        (["run", "nameless.toml"], 'nameless.toml names no strategy. Expected a line such as strategy = "fedasync"'),
        (["run", "outside.toml"], "Unknown setting 'out'. Known: strategy"),
        (["run", "number.toml"], "Expected a table: [parameters]"),
        (["run", "..:x"], "'..:x' cannot be imported"),
        (["run", "nowhere.py:Mine"], "nowhere.py"),
        (["run", "dir.py:Mine"], "IsADirectoryError"),
        (["run", "syntax.py:Mine"], "SyntaxError: invalid syntax (syntax.py, line 1)"),
        (["run", "name.py:Mine"], "NameError: name 'Strategie' is not defined (line 3)"),
        (["run", "kinds.py:Mine"], "Nope"),
        (["run", "kinds.py:Needy"], "k is missing."),
        (["run", "leave.py:Mine"], "SystemExit: 3"),
        (["run", "os:path"], "expected a class derived from Strategy"),
        (["run", "os:getcwd"], "expected a class derived from Strategy"),
        (["run", "fedasync", "--partition", "groups:nan,nan"], "not understood. Expected groups"),
        (["run", "fedasync", "--partition", "groups:999999999999"], "not understood. Expected groups"),
        (["run", "fedasync", "--partition", "rotations:1000000"], "1 to 36 clusters"),
        (["run", "fedasync", "--data", "~nosuchuser/x.npz"], "there is no home directory ~nosuchuser"),
        (["run", "fedasync", "--data", "mnist", "--data-dir", "~nosuchuser"], "no home directory ~nosuchuser"),
        (["run", "fedasync", "--time", "inf"], "time: Input should be a finite number"),
        (["run", "fedasync", "--momentum", "nan"], "momentum: Input should be a finite number"),
        (["run", "fedasync", "--weight-decay", "inf"], "weight_decay: Input should be a finite number"),
        (["run", "fedasync", "--set", "staleness=polynomial:nan"], "finite numbers of at least 0"),
        (["run", "fedasync", "--set", "staleness=hinge:1:inf"], "finite numbers of at least 0"),
        (["run", "fedasync", "--set", "mixing=NaN"], "mixing: Input should be a finite number"),
        (["run", "fedbuff", "--set", "server_lr=Infinity"], "server_lr: Input should be a finite number"),
        (["run", "fedasync", "--lr", "nan"], "finite number above 0"),
        (["run", "fedasync", "--lr", "inf"], "finite number above 0"),
        (["run", "fedasync", "--lr", "step:0.1:-1:1"], "finite numbers, START above 0"),
        (["run", "fedasync", "--lr", "cosine:nan:0.1:10"], "finite numbers, START above 0"),
        (["run", "fedasync", "--devices", "long" * 99], "Unknown device mix"),
        (["run", "fedasync", "--devices", "never.dev"], "availability.on: Input should be a finite number"),
        (["run", "fedasync", "--devices", "lost.dev"], "dropout.probability: Input should be less than 1"),
        (["compare", "fedavg", "fedasink"], "Did you mean 'fedasync'"),
        (["compare", "fedavg", "--set", "mixing=0.5"], "parameter"),
        (["compare", "casa", "fedavg", "casa"], "casa is named twice"),
        (["run", "casa", "--set", "preset=papers"], "Parameters of casa: Unknown preset 'papers'."),
        (["run", "misplaced.toml"], "preset is a parameter of casa"),
        (["report", "nowhere"], "No finished run"),
        (["list", "strategy"], "Did you mean 'strategies'"),
        (["bench", "casa-tabel1"], "Did you mean 'casa-table1'"),
        (["bench", "casa-table1", "--only", "mnits"], "Did you mean 'mnist'"),
        (["bench", "casa-table1", "--row", "cassa"], "Did you mean 'casa'"),
        (["data", "get", "mnits"], "Did you mean 'mnist'"),
        (["data", "get", "mnist"], "mirror"),
    ],
)
def test_bad_input_is_one_message_on_stderr_and_exit_code_2(polytempo, tmp_path, monkeypatch, arguments, hint):
    monkeypatch.delenv("POLYTEMPO_MIRROR", raising=False)
    write_bad_files(tmp_path)
    code, out, err = polytempo(*arguments)
    assert code == 2
    assert hint in err
    assert "Traceback" not in out + err


def test_a_refused_setting_leaves_no_directory(polytempo, tmp_path):
    assert polytempo("run", "fedasync", "--participation", "some", "--out", "here")[0] == 2
    assert not (tmp_path / "here").exists()
    assert polytempo("run", "fedasync", "--updates", 5, "--out", "here")[0] == 0


def test_a_report_leaves_unfinished_runs_out(polytempo, tmp_path):
    polytempo("run", "fedasync", "--clients", 5, "--updates", 5, "--out", "done")
    (tmp_path / "cut").mkdir()
    code, _, err = polytempo("report", "done", "cut")
    assert code == 0
    assert "cut holds no finished run" in err


def test_a_drift_after_the_end_is_pointed_out(polytempo, tmp_path):
    (tmp_path / "e.toml").write_text(
        'strategy = "fedasync"\nupdates = 5\n[[drift]]\nkind = "swap"\nlabels = [[0, 1]]\nat = 1e6\n'
    )
    code, _, err = polytempo("run", "e.toml", "--quiet")
    assert code == 0
    assert "never happened" in err


def test_a_state_that_cannot_be_saved_is_an_error_before_the_run(polytempo, tmp_path):
    (tmp_path / "own.py").write_text(
        "from polytempo.strategies import Strategy\n"
        "class Own(Strategy):\n    def setup(self):\n        self.seen = {1}\n"
    )
    code, _, err = polytempo("run", "own.py:Own", "--updates", 5)
    assert code == 2
    assert "'seen' of Own" in err


def test_a_metric_with_nan_is_an_error(polytempo, tmp_path):
    (tmp_path / "own.py").write_text("def metric(outputs, labels):\n    return (outputs[:, 0] * 0) / (labels != 0)\n")
    code, _, err = polytempo("run", "fedasync", "--metric", "own.py:metric", "--updates", 5)
    assert code == 2
    assert "NaN" in err


def test_steps_on_the_command_line_win_over_epochs_in_the_file(polytempo, tmp_path):
    (tmp_path / "e.toml").write_text('strategy = "fedasync"\nepochs = 2\nupdates = 5\n')
    code, out, _ = polytempo("run", "e.toml", "--steps", 3, "--json", "--quiet")
    assert code == 0
    assert json.loads(out)["client_steps"] == 15


def test_the_version_can_be_asked_for(polytempo):
    assert polytempo("--version")[1].startswith("polytempo 0.")


def test_an_own_file_may_import_its_neighbour(polytempo, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/neighbour.py").write_text("WIDTH = 7\n")
    (tmp_path / "sub/own.py").write_text(
        "from neighbour import WIDTH\nfrom torch import nn\n"
        "def net(inputs):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), nn.Linear(WIDTH, 10))\n"
    )
    assert polytempo("run", "fedasync", "--model", "sub/own.py:net", "--updates", 5, "--quiet")[0] == 0


def test_ctrl_c_ends_with_130_and_says_how_to_go_on(polytempo, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "simulate_experiment", interrupted)
    code, _, err = polytempo("run", "fedasync", "--out", "here")
    assert code == 130
    assert "--out here goes on" in err


def test_a_report_that_cannot_be_written_is_an_error(polytempo):
    polytempo("run", "fedavg", "--clients", 4, "--updates", 4, "--quiet", "--out", "r")
    code, _, err = polytempo("report", "r", "--out", "r/config.json/x.html")
    assert code == 2
    assert "Cannot write the report to r/config.json/x.html" in err


def test_a_strategy_of_ones_own_needs_no_decorator(polytempo, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from polytempo.strategies.methods.fedasync import FedAsync\n\n\nclass Mine(FedAsync):\n    patience: int = 3\n"
    )
    arguments = ("run", "mine.py:Mine", "--clients", 4, "--updates", 4, "--quiet")
    assert polytempo(*arguments, "--set", "patience=5", "--out", "r")[0] == 0
    assert json.loads((tmp_path / "r/config.json").read_text())["parameters"]["patience"] == 5
    code, _, err = polytempo(*arguments, "--set", "patience=often", "--out", "s")
    assert code == 2
    assert "patience: Input should be a valid integer" in err


def test_an_experiment_knows_its_files_by_content(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["own.dev", "rows.npz", "zeros.npy", "mine.csv", "method.py", "parts.py"]
    for name in names:
        (tmp_path / name).write_text(name)
    experiment = make_experiment(
        **{"strategy": "method.py:Mine", "devices": "own.dev", "partition": "file:rows.npz", "init": "zeros.npy"},
        **{"data": "mine.csv", "model": "parts.py:model", "loss": "parts.py:loss", "metric": "gone.py:metric"},
    )
    files = experiment.files()
    assert sorted(files) == sorted(names)
    (tmp_path / "parts.py").write_text("changed")
    assert {name for name, content in experiment.files().items() if content != files[name]} == {"parts.py"}
    assert make_experiment(strategy="fedavg").files() == {}


def test_where_data_lie_and_how_many_threads_train_are_no_settings_of_a_result():
    one, other = (make_experiment(strategy="fedavg", **where) for where in ({}, {"data_dir": "here", "workers": 3}))
    assert one.settings() == other.settings()


def test_a_bench_writes_its_quick_table(polytempo, tmp_path, monkeypatch):
    full = benches["robust"]
    quick = replace(full, quick={**full.quick, "updates": 40, "clients": 5})
    monkeypatch.setattr(benching, "benches", {"robust": quick})
    only = ("--only", "iid-clean", "--row", "fedbuff", "--row", "fedavg")
    code, out, _ = polytempo("bench", "robust", "--quick", "--seeds", 1, *only, "--quiet")
    assert (code, "fedbuff" in out) == (0, True)
    made = tmp_path / "results/robust-quick"
    assert {row["label"] for row in json.loads((made / "iid-clean.json").read_text())["rows"]} == {"fedavg", "fedbuff"}
    assert (made / "iid-clean.md").read_text().startswith("# Robustness")
    assert {"iid-clean.svg", "iid-clean.html"} <= {path.name for path in made.iterdir()}


def test_run_says_which_defences_are_on_and_keeps_json_clean(polytempo):
    defended = ("--clip", 2, "--samples-cap", 10, "--robust", "median:5", "--clients", 6, "--updates", 12)
    code, out, err = polytempo("run", "fedasync", *defended, "--json", "--out", "a")
    assert code == 0
    assert "defences: clip 2, robust median:5, samples up to 10 x the median" in err
    assert json.loads(out)
    assert "defences" in polytempo("run", "fedasync", *defended, "--out", "b")[1]


def test_the_word_none_turns_a_defence_off(polytempo):
    code, out, err = polytempo("run", "fedasync", "--clip", "none", "--clients", 6, "--updates", 12, "--out", "r")
    assert (code, "defences" in out + err) == (0, False)
    code, _, err = polytempo("run", "fedasync", "--clip", "never")
    assert (code, "clip" in err) == (2, True)
