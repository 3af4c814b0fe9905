"""MNIST and the sets that share its idx files, gzipped or not: Fashion-MNIST and EMNIST."""

import gzip
from functools import partial
from math import prod
from pathlib import Path

import numpy as np

from polytempo.core.disk.reading import bytes_on_disk, check_memory
from polytempo.world.data.sources import Download, Source, check_labels, normalised, reading
from polytempo.world.dataset import Dataset
from polytempo_client.disk.reading import open_plain

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

# As published for the original .gz files, in the order of NAMES.
MNIST_MD5 = (
    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "d53e105ee54ea40749a09fcbcd1e9432",
    "9fb629c4189551a2d022fa330f9573f3",
    "ec29112dd5afa0611ce80d1b7f02629c",
)
FASHION_MNIST_MD5 = (
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79",
    "bb300cfdad3c16e7a12a480ee83cd310",
)
EMNIST_ZIP_MD5 = "58c8d27c78d21e728a6bc7b3cc06412e"

EMNIST_CLASSES = {"balanced": 47, "letters": 26, "byclass": 62, "bymerge": 47, "digits": 10, "mnist": 10}


def load_mnist(data_dir: Path, folder: str, mean: float, std: float) -> Dataset:
    """MNIST or Fashion-MNIST from its folder."""
    x_train, y_train, x_test, y_test = _read_four([data_dir / folder / name for name in NAMES], classes=10)
    x = normalised([x_train, x_test], (mean,), (std,))
    return Dataset(folder, x, np.concatenate([y_train, y_test]), 10, len(y_train))


def load_emnist(data_dir: Path, split: str) -> Dataset:
    """One split of EMNIST. Its images are stored transposed, and the labels of ``letters`` start at 1."""
    folder = data_dir / "emnist"
    folder = folder / "gzip" if (folder / "gzip").is_dir() else folder  # the published archive has this folder
    paths = [folder / name for name in _emnist_names(split)]
    classes, first = EMNIST_CLASSES[split], int(split == "letters")
    x_train, y_train, x_test, y_test = _read_four(paths, classes, first)
    x = normalised([x_train.swapaxes(2, 3), x_test.swapaxes(2, 3)], (0.1736,), (0.3248,))
    return Dataset(emnist_name(split), x, np.concatenate([y_train, y_test]), classes, len(y_train))


def emnist_name(split: str) -> str:
    """The data set's name: plain ``emnist`` is the balanced split."""
    return "emnist" if split == "balanced" else f"emnist-{split}"


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """The unsigned bytes of an idx file: two zero bytes, the type (8), the number of dimensions, each dimension as
    four bytes with the highest first, then the values. ``path`` is without ``.gz``; either kind is read."""
    zipped = path.with_name(path.name + ".gz")
    path = path if path.exists() else zipped
    with reading(path, f"an idx file of unsigned bytes with {dimensions} dimensions"):
        with open_plain(path) as plain, gzip.open(plain) if path == zipped else plain as file:
            begins = file.read(4)
            if begins != bytes([0, 0, 8, dimensions]):
                raise ValueError(f"it starts with bytes {begins.hex(' ') or '(none)'}")
            shape = tuple(int(n) for n in np.frombuffer(file.read(4 * dimensions), ">u4", dimensions))
            check_memory(prod(shape), f"an array of {' x '.join(map(str, shape))}", bytes_on_disk(plain))
            values = np.frombuffer(file.read(prod(shape) + 1), np.uint8)  # no more, whatever it unpacks to
        if len(values) != prod(shape):
            found = "more" if len(values) > prod(shape) else f"{len(values):,}"
            raise ValueError(f"it has {found} values where its header says {' x '.join(map(str, shape))}")
        return values.reshape(shape)


def _read_four(paths: list[Path], classes: int, first: int = 0) -> tuple[np.ndarray, ...]:
    """Train images, train labels, test images, test labels; the labels counted from 0."""
    arrays: list[np.ndarray] = []
    for images, labels in (paths[:2], paths[2:]):
        x, y = read_idx(images, 3), read_idx(labels, 1).astype(np.int64) - first
        with reading(labels, f"one label from {first} to {first + classes - 1} for each of the {len(x):,} images"):
            if len(x) != len(y):
                raise ValueError(f"it has {len(y):,} labels")
            check_labels(y, classes, first)
        arrays += [x[:, None], y]
    return tuple(arrays)


def _emnist_names(split: str) -> list[str]:
    return [f"emnist-{split}-{name.replace('t10k', 'test')}" for name in NAMES]


def _mnist_like(name: str, summary: str, md5: tuple[str, ...], mean: float, std: float) -> Source:
    files = tuple(f"{name}/{file}.gz" for file in NAMES)
    downloads = tuple(Download(file, checksum) for file, checksum in zip(files, md5, strict=True))
    return Source(summary, partial(load_mnist, folder=name, mean=mean, std=std), files, downloads)


def _emnist(split: str, classes: int) -> Source:
    return Source(
        f"handwritten characters, 28x28: EMNIST's split {split!r}, {classes} classes",
        partial(load_emnist, split=split),
        tuple(f"emnist/{name}.gz" for name in _emnist_names(split)),
        (Download("emnist/gzip.zip", EMNIST_ZIP_MD5, unpack_to="emnist"),),
    )


SOURCES = {
    "mnist": _mnist_like("mnist", "70,000 handwritten digits, 28x28", MNIST_MD5, 0.1307, 0.3081),
    "fashion-mnist": _mnist_like(
        "fashion-mnist", "70,000 pictures of clothes, 28x28", FASHION_MNIST_MD5, 0.2860, 0.3530
    ),
} | {emnist_name(split): _emnist(split, classes) for split, classes in EMNIST_CLASSES.items()}
