"""The models of a service as files for plain PyTorch."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from typer.testing import CliRunner

from polytempo.cli.main import app
from polytempo.core.errors import UserError
from polytempo.serve.journal.replay import newest, replay
from polytempo.serve.process.exporting import INDEX, export
from support.serving import hosted, join_all, journal_files, nudge, running, some_events


def module() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 3))


def rows(out: Path) -> dict[int | None, dict[str, object]]:
    return {row["client"]: row for row in json.loads((out / INDEX).read_text())["models"]}


def test_plain_torch_loads_what_each_client_is_served_strictly(tmp_path: Path) -> None:
    torch.manual_seed(0)
    floats = {name: tensor for name, tensor in module().state_dict().items() if tensor.is_floating_point()}
    save_file(floats, tmp_path / "first.safetensors")
    with hosted(tmp_path, "standalone", init=tmp_path / "first.safetensors") as server:
        join_all(server, 2)
        server.push(0, by=0.25)
        export(tmp_path, tmp_path / "out")
    loaded = module()
    for name, by in (("client-0", 0.25), ("client-1", 0.0), ("newcomer", 0.0)):
        loaded.load_state_dict(load_file(tmp_path / "out" / f"{name}.safetensors"), strict=True)
        for key, tensor in loaded.state_dict().items():
            assert torch.equal(tensor, floats[key] + by if key in floats else torch.tensor(0)), key
    loaded.eval()(torch.zeros(1, 1, 3, 3))


def test_the_index_says_of_each_file_whose_it_is_and_how_old(tmp_path: Path) -> None:
    with hosted(tmp_path) as server:
        some_events(server, updates=5, clients=3)
        event, version = server.host.journal.last, server.host.service.strategy.model.version
        export(tmp_path, tmp_path / "out")
    index = json.loads((tmp_path / "out" / INDEX).read_text())
    assert (index["event"], index["strategy"]) == (event, "fedasync")
    assert index["polytempo"]
    row = {"branch": 0, "version": version}
    assert rows(tmp_path / "out") == {
        **{client: {"client": client, "file": f"client-{client}.safetensors", **row} for client in range(3)},
        None: {"client": None, "file": "newcomer.safetensors", "branch": None, "version": version},
    }
    files = {(tmp_path / "out" / str(found["file"])).stat().st_ino for found in rows(tmp_path / "out").values()}
    assert len(files) == 1, "a model that all share is on disk once"


def test_the_state_now_is_read_from_the_newest_snapshot_and_is_the_same(tmp_path: Path) -> None:
    with hosted(tmp_path) as server:
        some_events(server)
        server.host.journal.snapshot(server.host.service.save_state())
        server.push(1, by=0.5)
    from_the_oldest = replay(tmp_path / "journal").service.digest()
    oldest, _ = journal_files(tmp_path, "snapshot-*")
    oldest.write_bytes(b"damaged")
    assert newest(tmp_path).service.digest() == from_the_oldest


def test_models_are_exported_while_the_server_runs(tmp_path: Path) -> None:
    with running(tmp_path, clients=1) as server, server.client(0) as client:
        task = client.task()
        client.push(task, nudge(task), samples=10)
        result = CliRunner().invoke(app, ["export", str(tmp_path), str(tmp_path / "models")], catch_exceptions=False)
        assert "2 files, the models of 1 client and of a newcomer, of fedasync after event" in result.stdout
        found = load_file(tmp_path / "models" / "client-0.safetensors")
    assert sorted(found) == ["bias", "weight"]
    assert float(found["bias"][0]) > 0


def test_what_is_there_already_is_not_overwritten(tmp_path: Path) -> None:
    with hosted(tmp_path) as server:
        join_all(server, 1)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes").write_text("mine")
    with pytest.raises(UserError, match="Expected a new or an empty directory"):
        export(tmp_path, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["notes"]


def test_an_export_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hosted(tmp_path) as server:
        join_all(server, 2)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "client-0")

    monkeypatch.setattr("polytempo.serve.process.exporting.write_tensors", full)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UserError, match="No space left on device"):
        export(tmp_path, tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == before
