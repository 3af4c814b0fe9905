"""Proxy sets: what the server has of each cluster, no client ever has; and their file says clearly what is wrong."""

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polytempo.cli import main as cli
from polytempo.core.errors import UserError
from polytempo.world.data import load_dataset
from polytempo.world.dataset import Dataset
from polytempo.world.drift import Drift
from polytempo.world.federation import Federation
from polytempo.world.partitions import make_federation
from polytempo.world.proxies import ProxyData, check_proxies, proxies_of, read_proxies, write_proxies

PARTITIONS = ["iid", "dirichlet:0.1", "groups", "groups:2", "rotations:1", "rotations:3", "composition:0-4/5-9/0-4/5-9"]
CHANGING = Drift(kind="mixture", after=1, every=1)


def toy(rows: int = 1200, classes: int = 10) -> Dataset:
    """Every image is another one, and no other under any rotation."""
    rng = np.random.default_rng(rows)
    x = rng.normal(size=(rows, 1, 4, 4)).astype(np.float32)
    return Dataset("toy", x, rng.permutation(np.arange(rows) % classes), classes, rows)


def federated(partition: str, proxies: Any, seed: int = 0, clients: int = 12, **more: Any) -> Federation:
    return make_federation(
        toy(), partition, 4 if "composition" in partition else clients, seed, proxies=proxies, **more
    )


def images(federation: Federation, rows: np.ndarray) -> set[tuple[float, ...]]:
    """What the rows show, however it is turned by quarters."""
    return {tuple(np.sort(image.ravel()).tolist()) for image in federation.dataset.x[rows]}


@pytest.mark.parametrize("partition", PARTITIONS)
@settings(max_examples=5)
@given(seed=st.integers(0, 2**32), proxies=st.integers(1, 40))
def test_no_client_holds_a_proxy_row_and_nobody_trains_on_a_test_row(partition: str, seed: int, proxies: int) -> None:
    federation = federated(partition, proxies, seed, drifts=[CHANGING])
    proxy = np.concatenate([cluster.proxy for cluster in federation.clusters])
    test = np.concatenate([cluster.test for cluster in federation.clusters])
    assert [len(cluster.proxy) for cluster in federation.clusters] == [proxies] * len(federation.clusters)
    assert len(np.unique(proxy)) == len(proxy)
    assert not np.isin(test, proxy).any()
    for client in range(len(federation)):
        for generation in range(4):
            data = federation.client(client, generation)
            assert not np.isin(np.concatenate([data.train, data.test]), proxy).any()
            assert not np.isin(data.train, test).any()
            assert len(data.train)


@pytest.mark.parametrize("clusters", [2, 4])
def test_no_client_sees_a_proxy_image_under_any_rotation(clusters: int) -> None:
    federation = federated(f"rotations:{clusters}", 30, drifts=[CHANGING])
    sets = [images(federation, cluster.proxy) for cluster in federation.clusters]
    assert len(set.union(*sets)) == 30 * clusters  # nor do two clusters share one
    for client in range(len(federation)):
        for generation in range(5):
            held = federation.client(client, generation)
            assert not images(federation, np.concatenate([held.train, held.test])) & set.union(*sets)


@pytest.mark.parametrize("partition", ["rotations:3", "groups"])
def test_a_proxy_set_and_the_test_rows_are_of_their_cluster(partition: str) -> None:
    federation = federated(partition, 20)
    if partition == "groups":
        assert federation.groups is not None
        for k, cluster in enumerate(federation.clusters):
            held = [federation.client(int(client)) for client in np.flatnonzero(federation.groups == k)]
            labels = set(federation.dataset.y[np.concatenate([data.train for data in held])].tolist())
            assert set(federation.dataset.y[cluster.proxy].tolist()) <= labels
            assert sorted(cluster.test) == sorted(np.concatenate([data.test for data in held]))
    else:
        train = federation.dataset.train_size // 3
        for k, cluster in enumerate(federation.clusters):
            assert (cluster.proxy // train == k).all()
            assert ((cluster.test - 3 * train) // (1200 - train) == k).all()


@pytest.mark.parametrize("partition", ["iid", "rotations:3", "groups:0.3,0.7"])
def test_labels_have_the_shares_of_their_cluster(partition: str) -> None:
    before, after = federated(partition, 0), federated(partition, 40)
    for k, cluster in enumerate(after.clusters):
        members = range(12) if before.groups is None else np.flatnonzero(before.groups == k)
        rows = np.concatenate([before.client(int(client)).train for client in members])
        if before.pools is not None:
            rows = np.arange(before.dataset.train_size // 3)
        exact = 40 * np.bincount(before.dataset.y[rows], minlength=10) / len(rows)
        assert np.abs(np.bincount(after.dataset.y[cluster.proxy], minlength=10) - exact).max() < 1


def test_clients_give_in_proportion_to_their_sizes_and_keep_what_they_need() -> None:
    before, after = (federated("dirichlet:0.3", proxies, min_samples=20) for proxies in (0, 200))
    had, has = np.diff(before.train_off), np.diff(after.train_off)
    assert np.abs((had - has) - 200 * had / had.sum()).max() <= 10  # one per label
    assert (has + np.diff(after.test_off)).min() >= 20
    assert np.array_equal(before.test_idx, after.test_idx)


def test_every_client_keeps_a_row_when_all_that_can_be_is_set_aside() -> None:
    with pytest.raises(UserError) as error:
        federated("iid", 1000, clients=30)
    possible = int(re.findall(r"at most (\d+)", str(error.value))[0])
    federation = federated("iid", possible, clients=30)
    assert np.diff(federation.train_off).tolist() == [1] * 30


@pytest.mark.parametrize("partition", ["groups", "rotations:4"])
def test_as_many_as_the_error_says_can_be_set_aside(partition: str) -> None:
    with pytest.raises(UserError, match="Take at most") as error:
        federated(partition, 5000)
    possible = int(re.findall(r"at most (\d+)", str(error.value))[0])
    federation = federated(partition, possible, drifts=[CHANGING])
    assert all(len(federation.client(client, 3).train) for client in range(12))
    with pytest.raises(UserError, match="Take at most"):
        federated(partition, possible + 1)


def test_the_default_is_500_or_a_fifth_of_the_cluster() -> None:
    digits = make_federation(load_dataset("digits"), "rotations:4", 20, 0, proxies="default")
    assert [len(cluster.proxy) for cluster in digits.clusters] == [71] * 4
    plenty = make_federation(toy(12_000), "iid", 20, 0, proxies="default")
    assert len(plenty.clusters[0].proxy) == 500
    assert len(plenty.clusters[0].test) == 2000


def test_negative_numbers_are_refused() -> None:
    with pytest.raises(UserError, match="-1 proxy samples"):
        federated("iid", -1)


@pytest.mark.parametrize("partition", ["rotations:4", "groups"])
def test_proxies_are_a_function_of_the_seed(partition: str) -> None:
    one, same, other = (federated(partition, 20, seed) for seed in (3, 3, 4))
    assert all(np.array_equal(a.proxy, b.proxy) for a, b in zip(one.clusters, same.clusters, strict=True))
    assert not np.array_equal(one.dataset.x[one.clusters[0].proxy], other.dataset.x[other.clusters[0].proxy])


# Files.


def some_arrays(**changed: Any) -> dict[str, Any]:
    x = np.arange(24, dtype=np.float32).reshape(6, 4)
    arrays = {"x": x, "y": np.array([0, 1, 2, 0, 1, 2]), "cluster": np.array([1, 0, 1, 0, 1, 1])}
    return {name: value for name, value in {**arrays, **changed}.items() if value is not None}


def written(path: Path, **changed: Any) -> Path:
    np.savez(path / "proxies.npz", **some_arrays(**changed))
    return path / "proxies.npz"


def test_what_is_written_is_read(tmp_path: Path) -> None:
    data = proxies_of(federated("rotations:3", 20))
    write_proxies(tmp_path / "proxies.npz", data)
    read = read_proxies(tmp_path / "proxies.npz")
    assert all(np.array_equal(one, other) for one, other in zip(data, read, strict=True))
    assert read.x.dtype == np.float32
    assert read.offsets.tolist() == [0, 20, 40, 60]


def test_samples_of_a_file_may_be_in_any_order(tmp_path: Path) -> None:
    data = read_proxies(written(tmp_path))
    assert data.offsets.tolist() == [0, 2, 6]
    assert data.x[:, 0].tolist() == [4, 12, 0, 8, 16, 20]
    assert data.y.tolist() == [1, 0, 0, 2, 1, 2]
    assert data.classes == 3


def test_text_stays_tokens(tmp_path: Path) -> None:
    data = read_proxies(written(tmp_path, x=np.arange(24).reshape(6, 4), vocabulary=24, classes=5))
    assert (data.x.dtype, data.vocabulary, data.classes) == (np.int64, 24, 5)
    check_proxies(data, (4,), 5, 24)
    with pytest.raises(UserError, match="tokens of text"):
        check_proxies(data, (4,), 5)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"cluster": None}, "no array 'cluster'"),
        ({"y": np.arange(5)}, "not 6 whole numbers"),
        ({"y": np.linspace(0, 1, 6)}, "y is float64"),
        ({"cluster": np.array([0, 2, 0, 2, 0, 2])}, "cluster 1 of 3 has no samples"),
        ({"cluster": np.array([0, 1, 0, 1, 0, -1])}, "clusters are -1 .. 1"),
        ({"cluster": np.array([0, 1, 0, 1, 0, 10**12])}, "clusters are 0 .. 1000000000000"),
        ({"x": np.full((6, 4), np.nan)}, "not finite"),
        ({"x": np.arange(6)}, "x is int64 of shape"),
        ({"x": np.full((6, 4), "a")}, "not numbers"),
        ({"x": np.zeros((0, 4)), "y": np.arange(0), "cluster": np.arange(0)}, "no samples"),
        ({"y": np.array([0, 1, 2, 0, 1, -1])}, "labels are -1 .. 2"),
        ({"classes": 2}, "not within 0 .. 1"),
        ({"classes": np.array([3, 3])}, "not one whole number"),
        ({"x": np.full((6, 4), 24), "vocabulary": 24}, "within 0 .. 23"),
    ],
)
def test_a_file_that_holds_no_proxy_sets_is_refused(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)) as error:
        read_proxies(written(tmp_path, **changed))
    assert "Expected an .npz with x" in str(error.value)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("x")
    np.save(tmp_path / "one.npy", np.arange(3))
    np.savez(tmp_path / "objects.npz", **some_arrays(x=np.array([{}] * 6)))
    (tmp_path / "cut.npz").write_bytes(written(tmp_path).read_bytes()[:300])
    for name in ("text.npz", "one.npy", "objects.npz", "cut.npz", "nothing.npz", "."):
        with pytest.raises(UserError, match="proxy sets"):
            read_proxies(tmp_path / name)


def test_proxy_sets_of_other_data_are_refused() -> None:
    data = ProxyData(np.zeros((2, 4), np.float32), np.array([0, 3]), np.array([0, 2]), 4)
    check_proxies(data, (4,), 4)
    with pytest.raises(UserError, match="shape"):
        check_proxies(data, (5,), 4)
    with pytest.raises(UserError, match="label 3"):
        check_proxies(data, (4,), 3)
    with pytest.raises(UserError, match="text"):
        check_proxies(data, (4,), 4, vocabulary=9)


# The command line.


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["polytempo", "data", "proxies", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_the_command_writes_what_the_clients_of_the_same_partition_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "proxies.npz"
    assert command(monkeypatch, str(out), "--partition", "rotations:2", "--clients", "4", "--size", "15") == 0
    assert "--proxies 15" in capsys.readouterr().out
    federation = make_federation(load_dataset("digits"), "rotations:2", 4, 0, proxies=15)
    assert np.array_equal(read_proxies(out).x, proxies_of(federation).x)


@pytest.mark.parametrize("words", [["--partition", "iid"], ["--partition", "iid", "--clients", "9", "--size", "9999"]])
def test_the_command_refuses_what_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    assert command(monkeypatch, str(tmp_path / "proxies.npz"), *words) == 2
    assert not list(tmp_path.iterdir())


def test_a_text_file_is_no_npz(tmp_path: Path) -> None:
    (tmp_path / "p.npz").write_text("x, y, cluster")
    with pytest.raises(UserError, match=r"it is no \.npz"):
        read_proxies(tmp_path / "p.npz")


def test_samples_too_large_for_float32_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", x=np.full((4, 2), 1e300), y=[0, 1, 0, 1], cluster=[0, 0, 1, 1])
    with pytest.raises(UserError, match="too large"):
        read_proxies(tmp_path / "p.npz")
