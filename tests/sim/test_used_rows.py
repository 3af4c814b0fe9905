"""A run keeps how the model that each client uses does on each of its test rows."""

import json

import numpy as np
import pytest

from polytempo import Run, simulate
from polytempo.core.errors import UserError
from polytempo.report.facts.alone import compared
from polytempo.sim.records.used import USED, UsedRows, checksum, read_used, write_used

WORLD = {"clients": 5, "updates": 20, "partition": "iid", "engine": "eager"}
OWN = """
import torch
def closeness(outputs, y):
    return torch.softmax(outputs, 1)[torch.arange(len(y)), y]
def in_top_two(outputs, y):
    return (outputs.topk(2).indices == y[:, None]).any(1).float()
"""


@pytest.mark.parametrize("sizes", [(1,), (8, 8), (3, 1, 13)])
def test_bits_come_back_as_they_were(tmp_path, sizes):
    rng = np.random.default_rng(0)
    used = UsedRows.of([rng.random(size) < 0.5 for size in sizes], [2**64 - 1, *range(len(sizes) - 1)])
    write_used(tmp_path, used)
    back = read_used(tmp_path / USED)
    assert not back.are_losses
    for name in ("values", "offsets", "checksums"):
        assert np.array_equal(getattr(back, name), getattr(used, name))
    assert [len(back.client(client)) for client in range(len(back))] == list(sizes)


def test_losses_come_back_as_they_were(tmp_path):
    used = UsedRows.of([np.array([0.5, 1.5], np.float32), np.array([2.5], np.float32)], [1, 2])
    write_used(tmp_path, used)
    back = read_used(tmp_path / USED)
    assert back.are_losses
    assert back.client(1).tolist() == [2.5]


def test_the_checksum_tells_other_rows_other_labels_and_another_order_apart():
    rows, labels = np.array([3, 1, 2]), np.array([0, 1, 2])
    others = [checksum(rows[::-1], labels), checksum(rows, labels[::-1]), checksum(rows[:2], labels[:2])]
    assert len({checksum(rows, labels), *others}) == 4
    assert checksum(rows, labels) == checksum(rows.copy(), labels.copy())


@pytest.mark.parametrize("strategy", ["fedavg", "concerto"])
def test_the_rows_of_a_client_average_to_the_accuracy_of_its_used_model(tmp_path, strategy):
    run = simulate(strategy, **WORLD, out=tmp_path)
    for one in (run, Run.load(tmp_path)):
        means = [one.used.client(client).mean() for client in range(5)]
        assert means == pytest.approx(one.final_per_client("used").tolist())
        assert one.accuracy_used == pytest.approx(np.mean(means))


def test_without_the_rule_the_used_model_is_the_served_one():
    run = simulate("fedavg", **WORLD)
    assert run.final_per_client("used").tolist() == run.final_per_client().tolist()
    assert run.accuracy_used == run.accuracy
    assert not np.array_equal(run.final_per_client("own"), run.final_per_client())


def test_a_metric_of_ones_own_that_is_right_or_wrong_keeps_bits_and_another_one_losses(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    bits = simulate("fedavg", **WORLD, metric="own.py:in_top_two").used
    losses = simulate("fedavg", **WORLD, metric="own.py:closeness").used
    assert (bits.are_losses, losses.are_losses, losses.values.dtype) == (False, True, np.float32)


def test_two_runs_in_one_world_have_the_same_test_rows_and_a_swap_of_labels_makes_others():
    swap = [{"kind": "swap", "labels": [[0, 1]], "clients": [0], "at": 1.0}]
    alone, fedavg = (simulate(name, **WORLD) for name in ("standalone", "fedavg"))
    swapped = simulate("fedavg", **WORLD, drift=swap)
    comparison = compared(fedavg, alone)
    assert comparison is not None
    assert comparison.left_out == 0
    assert (swapped.used.checksums != alone.used.checksums).tolist() == [True, False, False, False, False]


def test_a_run_of_an_older_version_used_what_was_served(tmp_path):
    run = simulate("fedavg", **WORLD, out=tmp_path)
    (tmp_path / USED).unlink()
    result = json.loads((tmp_path / "result.json").read_text())
    del result["accuracy_used"]
    (tmp_path / "result.json").write_text(json.dumps(result))
    rows = [json.loads(line) for line in (tmp_path / "evaluations.jsonl").read_text().splitlines()]
    for row in rows:
        del row["per_client_used"]
    (tmp_path / "evaluations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    older = Run.load(tmp_path)
    assert older.used is None
    assert older.accuracy_used == run.accuracy
    assert older.final_per_client("used").tolist() == run.final_per_client().tolist()


def test_a_damaged_file_is_one_sentence(tmp_path):
    simulate("fedavg", **WORLD, out=tmp_path)
    whole = (tmp_path / USED).read_bytes()
    (tmp_path / USED).write_bytes(whole[:60])
    with pytest.raises(UserError, match=r"used.npz cannot be read"):
        Run.load(tmp_path)
    np.savez(tmp_path / USED, right=np.zeros(1, np.uint8), offsets=np.array([0, 90]), checksums=np.zeros(1, np.uint64))
    with pytest.raises(UserError, match="one value per test row"):
        Run.load(tmp_path)


def test_alone_again_has_the_same_rows_and_other_random_numbers():
    alone, again = (simulate(name, **WORLD) for name in ("standalone", "standalone-again"))
    assert alone.used.checksums.tolist() == again.used.checksums.tolist()
    assert [row["client"] for row in alone.update_log] == [row["client"] for row in again.update_log]
    assert alone.digest != again.digest
    assert again.digest == simulate("standalone-again", **WORLD).digest
