"""The documentation's code runs and imports from facades only, its links lead somewhere, its lists are complete."""

import ast
import json
import re
import sys

import numpy as np
import pytest
import torch
from typer.main import get_command

from polytempo import simulate
from polytempo.cli import main as cli
from polytempo.learn.questions import questions
from polytempo.papers import benches
from polytempo_client import Client
from polytempo_client.imports import from_import_path
from support import ROOT
from support.serving import running

DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "client/README.md",
    ROOT / "client/node/README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "deploy/README.md",
    *sorted(DOCS.rglob("*.md")),
]
FACADES = {"polytempo", "polytempo.methods", "polytempo.testing", "polytempo_client", "polytempo_client.errors"}


def blocks(page):
    """The Python code of a page."""
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def each_page(test):
    return pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))(test)


BLOCKS = blocks(DOCS / "guides/writing-a-method.md")


@pytest.fixture
def latest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "latest.py").write_text(BLOCKS[0])


def test_the_method_of_the_docs_is_short_and_runs_from_the_command_line(latest, monkeypatch, capsys):
    assert len([line for line in BLOCKS[0].splitlines() if line.strip()]) <= 30
    arguments = ["run", "latest.py:Latest", "--set", "max_staleness=50", "--clients", "5", "--json", "--quiet"]
    monkeypatch.setattr(sys, "argv", ["polytempo", *arguments])
    with pytest.raises(SystemExit, match="0"):
        cli.main()
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["strategy"] == "latest.py:Latest"
    assert result["accuracy"] > 0.3


def test_the_question_of_the_docs_answers(latest):
    exec(BLOCKS[1], {})
    assert "worst-loss" in questions


@pytest.mark.parametrize("block", BLOCKS[2:], ids=["contract", "by hand", "scripted clock"])
def test_the_tests_of_the_docs_pass(latest, block):
    exec(block, {"Latest": from_import_path("latest.py:Latest", "strategy")})


def test_the_own_model_loss_and_metric_of_the_docs_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example, own_goal = blocks(DOCS / "guides/models.md")
    names = {}
    exec(own_goal, names)
    assert names["run"].summary().startswith("fedavg, seed 0: log error 0.")
    (tmp_path / "own.py").write_text(example)
    own = {"model": "own.py:net", "loss": "own.py:smoothed", "metric": "own.py:in_top_two"}
    digests = {simulate("fedasync", batch_size=8, updates=60, workers=workers, **own).digest for workers in (1, 2)}
    assert len(digests) == 1


def test_the_adapter_of_the_docs_is_all_that_travels(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own, of_the_example = blocks(DOCS / "guides/adapters.md")
    (tmp_path / "own.py").write_text(own)
    assert simulate("fedasync", clients=4, updates=4, model="own.py:net").bytes_up == 4 * 4 * 1_666
    assert of_the_example in (ROOT / "examples/adapters.py").read_text()


def test_the_objects_of_the_docs_run():
    names = {}
    for example in blocks(DOCS / "guides/objects.md"):
        exec(example, names)
    assert names["run"].updates == 9
    assert names["run"].config["objects"].keys() == {"data", "model", "loss", "metric", "partition", "devices"}


def test_the_weights_of_ones_own_of_the_docs_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (example,) = blocks(DOCS / "methods/collaboration.md")
    (tmp_path / "nearest.py").write_text(example)
    run = simulate("nearest.py:Nearest", clients=6, updates=30, partition="dirichlet:0.1")
    rows = run.graph_at(run.virtual_time).matrix()
    assert ((rows == 0.5).sum(axis=1) == 2).all()


def test_the_method_with_a_rule_of_the_docs_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (example,) = blocks(DOCS / "methods/personal.md")
    (tmp_path / "near.py").write_text(example)
    run = simulate("near.py:Near", clients=6, updates=60)
    assert run.accuracy_used > run.accuracy


def test_the_callback_of_the_docs_watches(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    callback, use = blocks(DOCS / "guides/trackers.md")
    (tmp_path / "watching.py").write_text(callback)
    exec(use, {})
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 12  # eleven evaluations and the end
    assert "slowest fifth" in printed[0]
    assert printed[-1].startswith("fedasync: client ")


def test_the_progress_of_the_docs_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.perf_counter", iter(range(10**6)).__next__)  # a second between any two looks
    names = {}
    (example,) = blocks(DOCS / "guides/notebooks.md")
    exec(example, names)
    assert names["shares"][-1] == 1
    assert len(names["shares"]) > 90


def test_plain_pytorch_loads_the_models_file_as_the_docs_say(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = simulate("casa", clients=6, updates=60, out="kept")
    (example,) = blocks(DOCS / "reference/models-file.md")
    names = {}
    exec(example, names)
    tensors = names["tensors"]
    own = {name for name in tensors if not name[0].isdigit()}
    assert own == {"clients", "client_model"}
    assert len({name.split(".")[0] for name in tensors if name[0].isdigit()}) == run.clusters
    assert tensors["clients"].tolist() == list(range(6))
    assert names["prefix"] == f"{tensors['client_model'][2]}."


def test_the_models_file_of_a_graph_has_what_the_docs_say(tmp_path):
    from safetensors.torch import load_file

    simulate("pace", clients=4, updates=8, steps=1, engine="eager", out=tmp_path)
    graph = load_file(tmp_path / "models.safetensors")["collaboration"]
    assert tuple(graph.shape) == (4, 4)
    assert str(graph.dtype) == "torch.float32"


def test_the_results_of_the_docs_are_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for example in blocks(DOCS / "guides/results.md"):
        exec(example, names)
    assert (tmp_path / "accuracy.pdf").exists()
    assert len(list(tmp_path.glob("figures/*.svg"))) == len(names["comparison"].kinds())
    assert len(list(tmp_path.glob("models/client-*.safetensors"))) == 8


def test_the_private_layers_of_the_docs_make_whole_models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example, method = blocks(DOCS / "guides/private-layers.md")
    names = {}
    exec(example, names)
    assert [list(tensor.shape) for tensor in names["whole"].state_dict().values()] == [
        [100, 64],
        [100],
        [10, 100],
        [10],
    ]
    whole, begun = names["whole"].state_dict(), names["begun"].state_dict()
    assert [name for name in whole if not torch.equal(whole[name], begun[name])] == ["3.weight", "3.bias"]
    (tmp_path / "own.py").write_text(method)
    run = simulate("own.py:FedPerAsync", clients=5, updates=25)
    assert run.bytes_up == 25 * 4 * 6500


def test_the_python_example_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example, _ = blocks(ROOT / "README.md")
    exec(example, {})
    assert (tmp_path / "fedasync.png").stat().st_size > 10_000


def test_the_differences_of_the_docs_are_printed(capsys):
    (example,) = blocks(DOCS / "guides/statistics.md")
    exec(example, {})
    assert capsys.readouterr().out.startswith("fed")


def test_the_sweep_of_the_docs_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (example,) = blocks(DOCS / "guides/sweeps.md")
    exec(example, {})
    assert "'lr'" in capsys.readouterr().out
    assert (tmp_path / "sweep/map.svg").stat().st_size > 2000


@pytest.mark.parametrize(("page", "block"), [("README.md", 1), ("docs/service/serving.md", 0)])
def test_the_clients_of_the_docs_push_to_a_server(tmp_path, page, block):
    example = blocks(ROOT / page)[block]
    assert len([line for line in example.splitlines() if line.strip()]) <= 5
    pushed = []

    def train(tensors):
        pushed.append(tensors)
        if len(pushed) > 3:
            raise KeyboardInterrupt
        return {name: array + 1 for name, array in tensors.items()}

    with running(tmp_path) as server:
        here = re.sub(r"Client\(.*?\) as", "connect() as", example).replace("from polytempo import Client\n", "")
        names = {"connect": lambda: server.client(0), "train": train, "number_of_samples": 10}
        with pytest.raises(KeyboardInterrupt):
            exec(here, names)
        assert server.host.service.members[0].updates == 3


def test_the_client_with_a_model_of_its_own_of_the_docs_takes_part(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example = next(block for block in blocks(DOCS / "service/serving.md") if "judged" in block)
    assert len([line for line in example.splitlines() if line.strip()]) <= 15
    here = re.sub(r"Client\(.*?\) as", "connect() as", example)
    x = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)

    def train(tensors, x, y):
        return {"weight": tensors["weight"] + np.float32([[-0.1, 0], [0.1, 0]]), "bias": tensors["bias"]}

    with running(tmp_path, personal=True) as server:
        names = {"connect": lambda: server.client(0, tmp_path / "task"), "train": train, "x": x, "y": 1 * (x[:, 0] > 0)}
        exec(here, names)
        assert list(server.host.service.strategy.reports) == [0]
    assert names["tensors"]["weight"].shape == (2, 2)


def test_the_light_client_of_the_docs_takes_part(tmp_path):
    runs, train, several, servers, ask = blocks(DOCS / "guides/light-client.md")
    names = {"number_of_samples": 5, "x": np.zeros((6, 2), np.float32), "y": np.zeros(6), "Client": Client}
    with running(tmp_path) as server:
        here = re.sub(r"Client\(.*?\) as", "connect() as", runs).replace("from polytempo_client import Client\n", "")
        exec(here, names | {"connect": lambda: server.client(0), "train": lambda tensors: tensors})
        assert server.host.service.members[0].updates == 20
        exec(
            several.replace("7733", "1").replace("127.0.0.1:7734", server.address),
            connected := names | {"token": server.token(1)},
        )
        with connected["client"] as client:
            client.run(lambda task: (task.tensors, 5), updates=1)
        exec(servers, names)
        assert names["servers"].give_up_after == 3600
        exec(train, names)
        exec(ask, names)
        with server.client(2) as client:
            client.run(names["train"], updates=1, ask=names["ask"])  # the next one would wait for ten minutes
        assert server.host.service.members[2].updates == 1


def commands(group, prefix=""):
    """All commands by name, also those of groups."""
    for name, command in group.commands.items():
        found = commands(command, f"{name} ") if hasattr(command, "commands") else [(f"{prefix}{name}", command)]
        yield from found


@pytest.mark.parametrize(("name", "command"), [pytest.param(*one, id=one[0]) for one in commands(get_command(cli.app))])
def test_every_option_is_in_the_docs(name, command):
    text = (DOCS / "reference/command-line.md").read_text()
    for parameter in command.params:
        for option in parameter.opts:
            if option.startswith("--") and option != "--help":
                assert f"`{option}" in text, f"{option} of {name}"


@each_page
def test_every_link_leads_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text()):
        there = page.parent / target if target else page
        assert there.exists(), target
        assert not anchor or anchor in headings(there), f"{target}#{anchor}"


def test_the_index_leads_to_every_page():
    found = {DOCS / "index.md"}
    for index in (DOCS / "index.md", DOCS / "results/index.md"):
        found |= {(index.parent / target).resolve() for target in re.findall(r"\]\(([^)#]+)", index.read_text())}
    assert set(DOCS.rglob("*.md")) <= found


@each_page
def test_code_imports_from_facades_only(page):
    """Also what is in no block that runs. Where a thing lives inside the package is nobody's business."""
    imported = set()
    for node in (node for block in blocks(page) for node in ast.walk(ast.parse(block))):
        imported |= {node.module} if isinstance(node, ast.ImportFrom) else set()
        imported |= {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
    assert {name for name in imported if name.startswith("polytempo")} <= FACADES


@pytest.mark.parametrize("page", [*PAGES, ROOT / "Makefile"], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_and_benchmark_that_is_named_exists(page):
    text = page.read_text()
    for path in re.findall(r"\b(?:benchmarks|src/polytempo|tests|deploy)/[\w/.-]+\.(?:py|toml|yml)\b", text):
        assert (ROOT / path).exists(), path
    for path in re.findall(r"`((?:core|world|learn|strategies|sim|serve|report|papers)/[\w/]+\.py)`", text):
        assert (ROOT / "src/polytempo" / path).exists(), path
    for name in re.findall(r"polytempo bench ([a-z][\w-]+)", text):
        assert name in ["list", *benches], name


def headings(page):
    """As anchors: lower case, without punctuation, words joined by hyphens."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
