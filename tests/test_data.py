"""Every format is read from small files made here; every bad file is answered with an error that names it."""

import functools
import gzip
import hashlib
import http.server
import io
import json
import os
import pickle
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from polytempo.core.errors import UserError
from polytempo.world.data import datasets, default_data_dir, load_dataset
from polytempo.world.data.agnews import LENGTH
from polytempo.world.data.download import get_dataset
from polytempo.world.data.sources import Download
from polytempo.world.dataset import Dataset

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


def write_idx(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = (
        bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes() + values.astype(np.uint8).tobytes()
    )
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_mnist(folder: Path, suffix: str = ".gz", prefix: str = "", test: str = "t10k", first: int = 0) -> np.ndarray:
    """Six train and four test images; returns all of them."""
    images = np.arange(10 * 28 * 28).reshape(10, 28, 28) % 256
    labels = np.arange(10) % 5 + first
    for part, rows in (("train", slice(0, 6)), (test, slice(6, 10))):
        write_idx(folder / f"{prefix}{part}-images-idx3-ubyte{suffix}", images[rows])
        write_idx(folder / f"{prefix}{part}-labels-idx1-ubyte{suffix}", labels[rows])
    return images


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


def write_cifar10(folder: Path, protocol: int = 2) -> np.ndarray:
    folder.mkdir(parents=True, exist_ok=True)
    data = np.arange(12 * 3072).reshape(12, 3072).astype(np.uint8)
    for i, file in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        rows = slice(2 * i, 2 * i + 2)
        (folder / file).write_bytes(pickle.dumps({b"data": data[rows], b"labels": [i, 9]}, protocol))
    return data.reshape(12, 3, 32, 32)


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


def write_leaf(path: Path, samples: dict[str, list[int]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    user_data = {
        user: {"x": [[label / 100] * 784 for label in labels], "y": labels} for user, labels in samples.items()
    }
    path.write_text(json.dumps({"users": list(samples), "num_samples": [], "user_data": user_data}))


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


def write_uci_har(folder: Path) -> None:
    for part, labels, subjects in (("train", [1, 6, 2], [30, 1, 30]), ("test", [5], [2])):
        (folder / part).mkdir(parents=True)
        rows = ["  ".join(f"{label / 10: .7e}" for _ in range(561)) for label in labels]
        (folder / part / f"X_{part}.txt").write_text("\n".join(rows) + "\n")
        (folder / part / f"y_{part}.txt").write_text("\n".join(map(str, labels)) + "\n")
        (folder / part / f"subject_{part}.txt").write_text("\n".join(map(str, subjects)) + "\n")


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


def write_harbox(root: Path) -> None:
    for user, file, separator, rows in (("u2", "Walk", " ", 2), ("u1", "Walk", ",", 1), ("u1", "Hop", ", ", 1)):
        (root / user).mkdir(parents=True, exist_ok=True)
        lines = [separator.join(str(moment * 10 + k) for moment in range(100) for k in range(10)) for _ in range(rows)]
        (root / user / f"{file}_train.txt").write_text("\n".join(lines))


def test_harbox_keeps_the_last_nine_of_each_ten_numbers(tmp_path: Path) -> None:
    write_harbox(tmp_path / "harbox")
    data = load_dataset("harbox", tmp_path)
    assert data.x.shape == (4, 900)
    assert (data.x == [n for n in range(1000) if n % 10]).all()
    assert data.users is not None
    assert (data.y.tolist(), data.users.tolist()) == ([0, 1, 1, 1], [0, 0, 1, 1])
    assert (data.classes, data.train_size) == (2, 4)


def test_a_truncated_harbox_row_is_refused(tmp_path: Path) -> None:
    write_harbox(tmp_path / "harbox")
    damage_truncate(tmp_path / "harbox/u1/Walk_train.txt")
    with pytest.raises(UserError, match=r"u1/Walk_train\.txt cannot be read.*rows of 1000 numbers"):
        load_dataset("harbox", tmp_path)


# --- AG News


def write_ag_news(folder: Path, file: str, rows: list[tuple[int, str, str]]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / file).write_text("".join(f'"{label}","{title}","{text}"\n' for label, title, text in rows))


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


# --- the user's own data


def test_an_npz_may_bring_its_test_part_and_users(tmp_path: Path) -> None:
    users = np.array(["b", "a", "b"])
    np.savez(tmp_path / "my.npz", x=np.eye(2), y=[7, 3], x_test=np.ones((1, 2)), y_test=[5], users=users)
    data = load_dataset(str(tmp_path / "my.npz"))
    assert (data.name, data.y.tolist(), data.classes, data.train_size) == ("my", [2, 0, 1], 3, 2)
    assert data.users is not None
    assert (data.users.tolist(), data.x.dtype, data.x.shape) == ([1, 0, 1], np.float32, (3, 2))


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"x": np.eye(2)}, "y"),
        ({"x": np.eye(2), "y": [1]}, "x has 2 samples and y has shape"),
        ({"x": np.eye(2), "y": [0, 1], "x_test": np.eye(2)}, "one of x_test and y_test"),
        ({"x": np.eye(2), "y": [0, 1], "x_test": np.eye(3), "y_test": [0, 1, 1]}, "those of x_test"),
        ({"x": np.eye(2), "y": [0, 1], "users": [0]}, "users has shape"),
        ({"x": np.eye(2), "y": [0.5, 1]}, "not whole numbers"),
        ({"x": [[np.nan, 1]], "y": [0]}, "not finite"),
        ({"x": np.empty((0, 2)), "y": []}, "no samples"),
        ({"x": [1, 2], "y": [0, 1]}, "samples x features"),
        ({"x": np.array([{}], object), "y": [0]}, "allow_pickle"),
    ],
)
def test_an_npz_that_does_not_fit_together_is_refused(tmp_path: Path, arrays: dict, reason: str) -> None:
    np.savez(tmp_path / "my.npz", **arrays)
    with pytest.raises(UserError, match=rf"my\.npz cannot be read: .*{reason}.*Expected an \.npz"):
        load_dataset(str(tmp_path / "my.npz"))


def test_files_that_are_not_what_they_are_called_are_refused(tmp_path: Path) -> None:
    (tmp_path / "my.npz").write_bytes(b"nonsense")
    with pytest.raises(UserError, match=r"my\.npz cannot be read"):
        load_dataset(str(tmp_path / "my.npz"))
    (tmp_path / "my.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"my\.csv cannot be read"):
        load_dataset(str(tmp_path / "my.csv"))
    with pytest.raises(UserError, match=r"no data file .*other\.csv"):
        load_dataset(str(tmp_path / "other.csv"))


@pytest.mark.parametrize(
    ("text", "x", "y"),
    [
        ("1,2,0\n3,4,1\n", [[1, 2], [3, 4]], [0, 1]),
        ("a,b,c\n1,2,10\n3,4,9\n", [[1, 2], [3, 4]], [1, 0]),
        ("a,Label,c\n1,no,2\n3,yes,4\n", [[1, 2], [3, 4]], [0, 1]),
        ("y,1,2\n5,1,2\n6,3,4\n", [[1, 2], [3, 4]], [0, 1]),
        ("1,2,cat\n\n3,4,ant\n", [[1, 2], [3, 4]], [1, 0]),
    ],
)
def test_a_csv_label_is_the_column_of_that_name_or_the_last(tmp_path: Path, text: str, x: list, y: list) -> None:
    (tmp_path / "my.csv").write_text(text)
    data = load_dataset(str(tmp_path / "my.csv"))
    assert (data.x.tolist(), data.y.tolist(), data.classes, data.train_size) == (x, y, 2, 2)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1,2,0\n1,oops,1\n", "data row 2: .*oops"),
        ("1,2,0\n1,1\n", "data row 2 has 2 columns"),
        ("1,2,0\n1,2,\n", "data row 2 has no label"),
        ("1,2,0\n1,nan,1\n", "not finite"),
        ("a,b,y\n", "no samples"),
        ("", "no rows"),
    ],
)
def test_a_wrong_csv_row_is_named(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "my.csv").write_text(text)
    with pytest.raises(UserError, match=rf"my\.csv cannot be read: .*{reason}"):
        load_dataset(str(tmp_path / "my.csv"))


def write_image(path: Path, colour: int | tuple[int, int, int], size: tuple[int, int] = (3, 2)) -> None:
    image = pytest.importorskip("PIL.Image")
    path.parent.mkdir(parents=True, exist_ok=True)
    image.new("L" if isinstance(colour, int) else "RGB", size, colour).save(path)


def test_a_folder_of_images_has_a_class_per_folder(tmp_path: Path) -> None:
    write_image(tmp_path / "pets/dog/1.png", 255)
    write_image(tmp_path / "pets/cat/1.PNG", 0)
    data = load_dataset(str(tmp_path / "pets"))
    assert (data.x.shape, data.y.tolist(), data.classes, data.train_size) == ((2, 1, 2, 3), [0, 1], 2, 2)
    np.testing.assert_allclose([data.x[0], data.x[1]], [np.full((1, 2, 3), -1), np.full((1, 2, 3), 1)], atol=1e-6)


def test_a_folder_may_have_train_and_test_and_colour_is_kept(tmp_path: Path) -> None:
    write_image(tmp_path / "train/dog/1.png", 255)
    write_image(tmp_path / "train/cat/1.png", (255, 0, 255))
    write_image(tmp_path / "test/dog/1.png", (0, 0, 0))
    data = load_dataset(str(tmp_path))
    assert (data.x.shape, data.y.tolist(), data.train_size) == ((3, 3, 2, 3), [0, 1, 1], 2)
    np.testing.assert_allclose(data.x[0, :, 0, 0], [1, -1, 1], atol=1e-6)


def test_images_that_cannot_be_used_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="holds no images"):
        load_dataset(str(tmp_path))
    write_image(tmp_path / "cat/1.png", 0)
    write_image(tmp_path / "cat/2.png", 0, size=(5, 5))
    with pytest.raises(UserError, match=r"2\.png is 5x5, .*1\.png 3x2"):
        load_dataset(str(tmp_path))
    (tmp_path / "cat/2.png").write_bytes(b"nonsense")
    with pytest.raises(UserError, match=r"2\.png cannot be read"):
        load_dataset(str(tmp_path))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UserError, match=r"pip install 'polytempo\[images\]'"):
        load_dataset(str(tmp_path))


FUNCTIONS = """
import numpy as np
from polytempo.world.dataset import Dataset
x, y = np.eye(3), np.array([0, 1, 2])
def two(): return x, y
def four(): return x, y, x, y
def whole(): return Dataset("mine", x.astype(np.float32), y, 3, 2)
def wrong(): return [1]
def beyond(): return Dataset("mine", x.astype(np.float32), y, 2, 2)
def failing(): return 1 / 0
constant = 3
"""


def test_a_function_may_return_arrays_or_a_data_set(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    lengths = {name: load_dataset(f"{tmp_path}/mine.py:{name}") for name in ("two", "four", "whole")}
    assert {name: (len(data), data.train_size) for name, data in lengths.items()} == {
        "two": (3, 3),
        "four": (6, 3),
        "whole": (3, 2),
    }


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("wrong", "it returned a list"),
        ("beyond", r"labels must be 0 \.\. 1"),
        ("failing", "ZeroDivisionError"),
        ("constant", "'int' object is not callable"),
        ("tow", "Did you mean 'two'"),
    ],
)
def test_a_function_that_does_something_else_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    with pytest.raises(UserError, match=reason):
        load_dataset(f"{tmp_path}/mine.py:{name}")


def test_a_file_that_is_no_python_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def broken(:")
    with pytest.raises(UserError, match="SyntaxError"):
        load_dataset(f"{tmp_path}/mine.py:broken")


def test_a_data_set_checks_itself() -> None:
    x, y = np.zeros((2, 3), np.float32), np.array([0, 1])
    with pytest.raises(UserError, match="x must be float32"):
        Dataset("d", x.astype(np.float64), y, 2, 2)
    with pytest.raises(UserError, match="y must be 2 int64 labels"):
        Dataset("d", x, y[:1], 2, 2)
    with pytest.raises(UserError, match=r"train_size must be 0 \.\. 2"):
        Dataset("d", x, y, 2, 3)
    with pytest.raises(UserError, match="users must be 2"):
        Dataset("d", x, y, 2, 2, users=y[:1])


# --- downloads


class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        if "/broken/" not in self.path:
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"only this")
        return None

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path]]:
    """A mirror's address and its folder."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("POLYTEMPO_MIRROR", raising=False)
    folder = tmp_path / "mirror"
    folder.mkdir()
    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", folder
        server.shutdown()
        thread.join()


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def publish(path: Path, content: bytes) -> None:
    """Put a file on the mirror and list it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    (path.parent / "SHA256SUMS").write_text(f"{hashlib.sha256(content).hexdigest()}  {path.name}\n")


def zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def tarred(folder: Path, link: str | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.add(folder, folder.name)
        if link:
            member = tarfile.TarInfo("link")
            member.type, member.linkname = tarfile.SYMTYPE, link
            archive.addfile(member)
    return buffer.getvalue()


def with_downloads(monkeypatch: pytest.MonkeyPatch, name: str, *downloads: Download) -> None:
    monkeypatch.setitem(datasets._things, name, replace(datasets[name], downloads=downloads))


def test_files_with_the_published_checksum_are_kept_and_can_be_loaded(
    tmp_path: Path, mirror: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, folder = mirror
    write_mnist(folder / "mnist")
    paths = [download.path for download in datasets["mnist"].downloads]
    sums = [hashlib.md5((folder / path).read_bytes()).hexdigest() for path in paths]
    with_downloads(monkeypatch, "mnist", *map(Download, paths, sums))
    seen: list[tuple[str, int, int | None]] = []
    get_dataset("mnist", tmp_path / "data", url, lambda *progress: seen.append(progress))
    assert files_in(tmp_path / "data") == sorted(paths)
    assert len(load_dataset("mnist", tmp_path / "data")) == 10
    size = (folder / paths[0]).stat().st_size
    assert seen[:2] == [("train-images-idx3-ubyte.gz", 0, size), ("train-images-idx3-ubyte.gz", size, size)]


def test_a_wrong_checksum_leaves_nothing_and_shows_both(tmp_path: Path, mirror: tuple[str, Path]) -> None:
    url, folder = mirror
    write_mnist(folder / "mnist")
    actual = hashlib.md5((folder / "mnist/train-images-idx3-ubyte.gz").read_bytes()).hexdigest()
    with pytest.raises(UserError, match=f"wrong checksum: md5 {actual}, expected f68b3c2dcbeaaa9fbdd348bbdeb94873"):
        get_dataset("mnist", tmp_path / "data", url)
    assert files_in(tmp_path / "data") == []


def test_a_wrong_checksum_leaves_the_old_file(tmp_path: Path, mirror: tuple[str, Path]) -> None:
    url, folder = mirror
    write_ag_news(folder / "ag_news", "train.csv", [(1, "not the", "original")])
    write_ag_news(tmp_path / "ag_news", "train.csv", [(1, "the", "old")])
    with pytest.raises(UserError, match="wrong checksum"):
        get_dataset("ag-news", tmp_path, url)
    assert "old" in (tmp_path / "ag_news/train.csv").read_text()


def test_a_file_that_the_mirror_lacks_is_named(tmp_path: Path, mirror: tuple[str, Path]) -> None:
    with pytest.raises(UserError, match=r"no http://.*/mnist/train-images-idx3-ubyte\.gz \(it answers 404"):
        get_dataset("mnist", tmp_path / "data", mirror[0])
    assert files_in(tmp_path / "data") == []


def test_a_download_that_breaks_off_leaves_nothing(tmp_path: Path, mirror: tuple[str, Path]) -> None:
    with pytest.raises(UserError, match="broke off"):
        get_dataset("mnist", tmp_path / "data", mirror[0] + "/broken")
    assert files_in(tmp_path / "data") == []


def test_an_interrupted_download_leaves_nothing(tmp_path: Path, mirror: tuple[str, Path]) -> None:
    write_mnist(mirror[1] / "mnist")

    def interrupt(*progress: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get_dataset("mnist", tmp_path / "data", mirror[0], interrupt)
    assert files_in(tmp_path / "data") == []


def test_a_set_without_a_published_checksum_uses_the_mirrors_list(
    tmp_path: Path, mirror: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, folder = mirror
    write_uci_har(tmp_path / "UCI HAR Dataset")
    files = files_in(tmp_path / "UCI HAR Dataset")
    content = zipped({f"UCI HAR Dataset/{file}": (tmp_path / "UCI HAR Dataset" / file).read_bytes() for file in files})
    publish(folder / "uci-har/UCI HAR Dataset.zip", content)
    monkeypatch.setenv("POLYTEMPO_MIRROR", url)
    get_dataset("uci-har", tmp_path / "data")
    assert files_in(tmp_path / "data") == [f"UCI HAR Dataset/{file}" for file in files]
    assert len(load_dataset("uci-har", tmp_path / "data")) == 4
    (folder / "uci-har/SHA256SUMS").write_text("0" * 64 + "  other.zip\n")
    with pytest.raises(UserError, match=r"does not list 'UCI HAR Dataset\.zip'"):
        get_dataset("uci-har", tmp_path / "data")


def test_a_tar_archive_is_unpacked_and_removed(
    tmp_path: Path, mirror: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, folder = mirror
    write_cifar10(tmp_path / "cifar-10-batches-py")
    publish(folder / "cifar10/cifar-10-python.tar.gz", tarred(tmp_path / "cifar-10-batches-py"))
    with_downloads(monkeypatch, "cifar10", replace(datasets["cifar10"].downloads[0], md5=None))
    get_dataset("cifar10", tmp_path / "data", url)
    assert files_in(tmp_path / "data") == sorted(datasets["cifar10"].files)
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["cifar-10-batches-py"]
    assert len(load_dataset("cifar10", tmp_path / "data")) == 12


@pytest.mark.parametrize("name", ["../outside.txt", "/outside.txt", "harbox/../../outside.txt", "..\\outside.txt"])
def test_an_archive_cannot_write_outside_its_folder(tmp_path: Path, mirror: tuple[str, Path], name: str) -> None:
    url, folder = mirror
    publish(folder / "harbox/harbox.zip", zipped({"harbox/u/good_train.txt": b"1", name: b"bad"}))
    with pytest.raises(UserError, match="would land outside"):
        get_dataset("harbox", tmp_path / "data", url)
    assert files_in(tmp_path / "data") == []


def test_an_archive_with_a_link_or_without_sense_is_refused(tmp_path: Path, mirror: tuple[str, Path]) -> None:
    url, folder = mirror
    write_harbox(tmp_path / "harbox")
    publish(folder / "harbox/harbox.zip", tarred(tmp_path / "harbox", link="/etc"))
    with pytest.raises(UserError, match="not a plain file"):
        get_dataset("harbox", tmp_path / "data", url)
    publish(folder / "harbox/harbox.zip", b"nonsense")
    with pytest.raises(UserError, match=r"harbox\.zip is no tar or zip archive"):
        get_dataset("harbox", tmp_path / "data", url)
    assert files_in(tmp_path / "data") == []


def test_without_a_mirror_the_error_says_how_to_set_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLYTEMPO_MIRROR", raising=False)
    with pytest.raises(UserError) as error:
        get_dataset("mnist", tmp_path)
    for part in ("--mirror", "POLYTEMPO_MIRROR", "MIRROR/mnist/t10k", f"{tmp_path}/mnist/t10k-labels-idx1-ubyte.gz"):
        assert part in str(error.value)
    with pytest.raises(UserError, match="is no web address"):
        get_dataset("mnist", tmp_path, "/some/folder")
    with pytest.raises(UserError, match="needs no download"):
        get_dataset("digits", tmp_path)


def test_a_mirror_that_cannot_be_reached_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(UserError, match=r"http://127\.0\.0\.1:1/mnist/.* cannot be reached"):
        get_dataset("mnist", tmp_path, "http://127.0.0.1:1")
