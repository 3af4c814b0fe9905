"""Every format is read from small files made here; every bad file is answered with an error that names it."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from polytempo.core.errors import UserError
from polytempo.world.data import datasets, default_data_dir, load_dataset
from polytempo.world.data.agnews import LENGTH
from support import ROOT
from support.data_files import (
    write_ag_news,
    write_cifar10,
    write_harbox,
    write_idx,
    write_leaf,
    write_mnist,
    write_uci_har,
)

# --- the embedded set


def test_digits_are_1797_images_of_ten_classes_and_need_no_files(tmp_path: Path) -> None:
    digits = load_dataset("digits", tmp_path / "nowhere")
    assert digits.x.shape == (1797, 1, 8, 8)
    assert digits.x.dtype == np.float32
    assert (len(digits), digits.classes, digits.train_size) == (1797, 10, 1797)
    assert np.bincount(digits.y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert abs(digits.x.mean()) < 0.01
    assert abs(digits.x.std() - 1) < 0.01


def test_every_set_has_a_one_line_summary() -> None:
    assert {"digits", "mnist", "fashion-mnist", "emnist", "cifar10", "cifar100"} < set(datasets)
    assert {"femnist", "uci-har", "harbox", "ag-news"} < set(datasets)
    assert all(source.summary and "\n" not in source.summary for _, source in datasets.items())


# --- idx files


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(("name", "mean", "std"), [("mnist", 0.1307, 0.3081), ("fashion-mnist", 0.2860, 0.3530)])
def test_idx_files_are_read_and_normalised(tmp_path: Path, name: str, mean: float, std: float, suffix: str) -> None:
    images = write_mnist(tmp_path / name, suffix)
    data = load_dataset(name, tmp_path)
    np.testing.assert_allclose(data.x[:, 0], (images / 255 - mean) / std, atol=1e-5)
    assert data.y.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]
    assert (data.x.dtype, data.y.dtype, data.train_size, data.classes) == (np.float32, np.int64, 6, 10)


@pytest.mark.parametrize("folder", ["emnist", "emnist/gzip"])
def test_emnist_images_are_turned_upright(tmp_path: Path, folder: str) -> None:
    images = write_mnist(tmp_path / folder, prefix="emnist-balanced-", test="test")
    data = load_dataset("emnist", tmp_path)
    np.testing.assert_allclose(data.x[:, 0], (images.swapaxes(1, 2) / 255 - 0.1736) / 0.3248, atol=1e-5)
    assert data.classes == 47


def test_emnist_letters_are_counted_from_zero(tmp_path: Path) -> None:
    write_mnist(tmp_path / "emnist", prefix="emnist-letters-", test="test", first=1)
    data = load_dataset("emnist-letters", tmp_path)
    assert (data.y.min(), data.classes) == (0, 26)


def damage_truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def damage_empty(path: Path) -> None:
    path.write_bytes(b"")


def damage_overwrite(path: Path) -> None:
    path.write_bytes(b"<html>not what you wanted</html>")


damages = pytest.mark.parametrize("damage", [damage_truncate, damage_empty, damage_overwrite])


@damages
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_damaged_idx_file_is_named(tmp_path: Path, suffix: str, damage: Callable[[Path], None]) -> None:
    write_mnist(tmp_path / "mnist", suffix)
    damage(tmp_path / "mnist" / f"t10k-images-idx3-ubyte{suffix}")
    with pytest.raises(UserError, match=r"t10k-images-idx3-ubyte.* cannot be read: .*Expected an idx file"):
        load_dataset("mnist", tmp_path)


def test_labels_that_do_not_fit_the_images_are_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    path = tmp_path / "mnist" / "train-labels-idx1-ubyte.gz"
    write_idx(path, np.arange(5))
    with pytest.raises(UserError, match=r"train-labels.*it has 5 labels.*each of the 6 images"):
        load_dataset("mnist", tmp_path)
    write_idx(path, np.full(6, 10))
    with pytest.raises(UserError, match=r"train-labels.*labels from 10 to 10.*from 0 to 9"):
        load_dataset("mnist", tmp_path)


# --- CIFAR


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_cifar10_batches_are_joined_with_the_test_batch_last(tmp_path: Path, protocol: int) -> None:
    images = write_cifar10(tmp_path / "cifar-10-batches-py", protocol)
    data = load_dataset("cifar10", tmp_path)
    np.testing.assert_allclose(data.x[:, 1], (images[:, 1] / 255 - 0.4822) / 0.2435, atol=1e-5)
    assert data.y.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9, 5, 9]
    assert (data.train_size, data.classes, data.x.dtype) == (10, 10, np.float32)


def test_cifar100_uses_the_fine_labels(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for file, label in (("train", 99), ("test", 42)):
        batch = {b"data": np.zeros((1, 3072), np.uint8), b"fine_labels": [label], b"coarse_labels": [3]}
        (folder / file).write_bytes(pickle.dumps(batch, 2))
    data = load_dataset("cifar100", tmp_path)
    assert (data.y.tolist(), data.classes, data.train_size) == ([99, 42], 100, 1)


class Attack:
    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("attacked",)


def test_a_pickle_that_asks_for_anything_but_arrays_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_cifar10(tmp_path / "cifar-10-batches-py")
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(pickle.dumps({b"data": Attack()}))
    with pytest.raises(UserError, match=r"data_batch_3 cannot be read: it asks for \w+\.mkdir"):
        load_dataset("cifar10", tmp_path)
    assert not (tmp_path / "attacked").exists()


@damages
def test_a_damaged_cifar_file_is_named(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    write_cifar10(tmp_path / "cifar-10-batches-py")
    damage(tmp_path / "cifar-10-batches-py" / "data_batch_2")
    with pytest.raises(UserError, match="data_batch_2 cannot be read"):
        load_dataset("cifar10", tmp_path)


def test_a_cifar_file_without_labels_is_refused(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "cifar-10-batches-py")
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(
        pickle.dumps({b"data": np.zeros((1, 3072), np.uint8)})
    )
    with pytest.raises(UserError, match="test_batch cannot be read: 'labels' is missing"):
        load_dataset("cifar10", tmp_path)


# --- sets with users


def test_femnist_keeps_who_wrote_what(tmp_path: Path) -> None:
    write_leaf(tmp_path / "femnist/train/a.json", {"writer2": [5, 61], "writer1": [7]})
    write_leaf(tmp_path / "femnist/train/b.json", {"writer3": [8]})
    write_leaf(tmp_path / "femnist/test/a.json", {"writer1": [9], "writer2": [10]})
    data = load_dataset("femnist", tmp_path)
    assert data.y.tolist() == [5, 61, 7, 8, 9, 10]
    assert data.users is not None
    assert data.users.tolist() == [1, 1, 0, 2, 0, 1]
    np.testing.assert_allclose(data.x[:, 0, 27, 27], (data.y / 100 - 0.5) / 0.5, atol=1e-6)
    assert (data.x.shape, data.train_size, data.classes) == ((6, 1, 28, 28), 4, 62)


@damages
def test_a_damaged_leaf_file_is_named(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    write_leaf(tmp_path / "femnist/train/a.json", {"writer": [5]})
    write_leaf(tmp_path / "femnist/test/a.json", {"writer": [5]})
    damage(tmp_path / "femnist/test/a.json")
    with pytest.raises(UserError, match=r"test/a\.json cannot be read.*LEAF json"):
        load_dataset("femnist", tmp_path)


@pytest.mark.parametrize("folder", ["UCI HAR Dataset", "uci-har"])
def test_uci_har_users_are_its_subjects(tmp_path: Path, folder: str) -> None:
    write_uci_har(tmp_path / folder)
    data = load_dataset("uci-har", tmp_path)
    assert data.users is not None
    assert (data.y.tolist(), data.users.tolist(), data.train_size) == ([0, 5, 1, 4], [2, 0, 2, 1], 3)
    np.testing.assert_allclose(data.x[:, 560], [0.1, 0.6, 0.2, 0.5])
    assert (data.x.shape, data.classes) == ((4, 561), 6)


def test_a_short_uci_har_file_is_named(tmp_path: Path) -> None:
    write_uci_har(tmp_path / "uci-har")
    (tmp_path / "uci-har/train/subject_train.txt").write_text("1\n2\n")
    with pytest.raises(UserError, match=r"subject_train\.txt cannot be read: it has 2\. Expected 3 numbers"):
        load_dataset("uci-har", tmp_path)
    damage_truncate(tmp_path / "uci-har/train/X_train.txt")
    with pytest.raises(UserError, match=r"X_train\.txt cannot be read.*561 numbers"):
        load_dataset("uci-har", tmp_path)


def test_a_harbox_window_is_a_hundred_lines_without_their_times(tmp_path: Path) -> None:
    write_harbox(tmp_path / "harbox")
    data = load_dataset("harbox", tmp_path)
    assert data.x.shape == (4, 900)
    assert (data.x == [n for n in range(1000) if n % 10]).all()
    assert data.users is not None
    assert (data.y.tolist(), data.users.tolist()) == ([0, 1, 1, 1], [0, 0, 1, 1])
    assert (data.classes, data.train_size) == (2, 4)


@pytest.mark.parametrize("line", ["1 2 3", " ".join(map(str, range(1000)))])
def test_a_harbox_line_of_another_length_is_refused_by_its_number(tmp_path: Path, line: str) -> None:
    write_harbox(tmp_path / "harbox")
    path = tmp_path / "harbox/u1/Walk_train.txt"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:41], line, *lines[42:]]))
    complaint = rf"u1/Walk_train\.txt cannot be read: line 42 has {len(line.split())} numbers.*lines of 10"
    with pytest.raises(UserError, match=complaint):
        load_dataset("harbox", tmp_path)


# --- data of real clients


@pytest.mark.parametrize("name", ["uci-har-inertial", "wisdm-watch", "mit-bih"])
def test_data_of_real_clients_are_read_with_their_users(tmp_path: Path, name: str) -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    np.savez(tmp_path / f"{name}.npz", x=x, y=[0, 2, 2, 0], users=[7, 3, 7, 9], classes=5)
    data = load_dataset(name, tmp_path)
    assert (data.name, data.classes, data.train_size) == (name, 5, 4)
    assert data.users is not None
    assert (data.y.tolist(), data.users.tolist()) == ([0, 2, 2, 0], [1, 0, 1, 2])
    assert (data.x == x).all()


def test_a_missing_file_of_real_clients_is_named_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"'mit-bih' is not there.*\n  {tmp_path}/mit-bih\.npz"):
        load_dataset("mit-bih", tmp_path)


def test_data_of_real_clients_without_users_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "wisdm-watch.npz", x=np.zeros((2, 3)), y=[0, 1], classes=2)
    with pytest.raises(UserError, match=r"wisdm-watch\.npz cannot be read: it has no users"):
        load_dataset("wisdm-watch", tmp_path)


# --- AG News


def test_ag_news_words_are_numbered_by_frequency_in_the_train_part(tmp_path: Path) -> None:
    write_ag_news(tmp_path / "ag_news", "train.csv", [(1, "Up, up", "and UP"), (4, "and down", "word " * 100)])
    write_ag_news(tmp_path / "ag_news", "test.csv", [(3, "Unseen", "up")])
    data = load_dataset("ag-news", tmp_path)
    word, up, also = 2, 3, 4
    assert data.x[0].tolist() == [up, up, also, up] + [0] * (LENGTH - 4)
    assert data.x[1].tolist() == [also, 5] + [word] * (LENGTH - 2)
    assert data.x[2].tolist() == [1, up] + [0] * (LENGTH - 2)
    assert (data.y.tolist(), data.train_size, data.classes, data.vocabulary) == ([0, 3, 2], 2, 4, 6)
    assert data.x.dtype == np.int64


def test_ag_news_without_its_train_file_trains_on_the_test_file(tmp_path: Path) -> None:
    write_ag_news(tmp_path / "ag_news", "test.csv", [(3, "Some", "text"), (2, "More", "text")])
    data = load_dataset("ag-news", tmp_path)
    assert (len(data), data.train_size, data.vocabulary) == (2, 2, 5)


def test_the_vocabulary_is_capped(tmp_path: Path) -> None:
    write_ag_news(tmp_path / "ag_news", "train.csv", [(1, "t", " ".join(f"w{n}" for n in range(11_000)))])
    assert load_dataset("ag-news", tmp_path).vocabulary == 10_000


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("5,title,text\n", "labels from 5 to 5"),
        ("1,title\n", "row 1 has 2 columns"),
        ("one,title,text\n", "invalid lit"),
    ],
)
def test_a_wrong_ag_news_row_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "ag_news").mkdir()
    (tmp_path / "ag_news/train.csv").write_text(content)
    with pytest.raises(UserError, match=rf"train\.csv cannot be read: .*{reason}.*label \(1 \.\. 4\), title, text"):
        load_dataset("ag-news", tmp_path)


# --- missing sets


@pytest.mark.parametrize("name", [name for name in datasets if name != "digits"])
def test_a_missing_set_says_what_to_put_where_and_how_to_get_it(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError) as error:
        load_dataset(name, tmp_path)
    for file in datasets[name].files:
        assert str(tmp_path / file) in str(error.value)
    assert f"polytempo data get {name}" in str(error.value)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"Did you mean 'fashion-mnist'\?.*an \.npz, a \.csv"):
        load_dataset("fashon-mnist")


def test_the_default_data_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("POLYTEMPO_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_data_dir() == tmp_path / ".cache/polytempo"
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert default_data_dir() == Path("/cache/polytempo")
    monkeypatch.setenv("POLYTEMPO_DATA", "/data")
    assert default_data_dir() == Path("/data")


def test_the_documentation_names_every_set() -> None:
    text = (ROOT / "docs/guides/data.md").read_text()
    assert [name for name in datasets if f"`{name}`" not in text] == []
