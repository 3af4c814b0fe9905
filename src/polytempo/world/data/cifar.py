"""CIFAR-10 and CIFAR-100 from their python pickles, read by an unpickler that admits nothing but arrays."""

import pickle
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from polytempo.world.data.sources import Download, Source, check_labels, normalised, reading
from polytempo.world.dataset import Dataset
from polytempo_client.disk.reading import open_plain


class Layout(NamedTuple):
    """The files of one of the two sets."""

    folder: str
    train: tuple[str, ...]
    test: str
    labels: str
    classes: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    archive: Download


LAYOUTS = {
    "cifar10": Layout(
        folder="cifar-10-batches-py",
        train=tuple(f"data_batch_{i}" for i in range(1, 6)),
        test="test_batch",
        labels="labels",
        classes=10,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        archive=Download("cifar10/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", unpack_to="."),
    ),
    "cifar100": Layout(
        folder="cifar-100-python",
        train=("train",),
        test="test",
        labels="fine_labels",
        classes=100,
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        archive=Download("cifar100/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", unpack_to="."),
    ),
}


def load(data_dir: Path, name: str) -> Dataset:
    """All train batches, then the test batch."""
    layout = LAYOUTS[name]
    paths = [data_dir / layout.folder / file for file in (*layout.train, layout.test)]
    images, labels = zip(*(read_batch(path, layout.labels, layout.classes) for path in paths), strict=True)
    x = normalised(images, layout.mean, layout.std)
    return Dataset(name, x, np.concatenate(labels), layout.classes, train_size=len(x) - len(images[-1]))


def read_batch(path: Path, label_key: str, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (samples x 3 x 32 x 32, bytes) and labels of one file."""
    with reading(path, f"a pickled dict with 'data' (samples x 3072 bytes) and {label_key!r} (0 .. {classes - 1})"):
        with open_plain(path) as file:
            batch = ArrayUnpickler(file, encoding="bytes").load()
        batch = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
        data, y = _array(batch["data"]), _array(batch[label_key]).astype(np.int64)
        if data.dtype != np.uint8 or data.shape != (len(y), 3072):
            raise ValueError(f"'data' is {data.dtype} of shape {data.shape} for {len(y)} labels")
        check_labels(y, classes)
        return data.reshape(-1, 3, 32, 32), y


class ArrayUnpickler(pickle.Unpickler):
    """A pickle can name any function to be called while it is read. This reader knows only those that rebuild an
    array, and has stand-ins for them: numpy's own take raw bytes for addresses of objects. Plain values (dicts, lists,
    numbers, strings) need none."""

    def find_class(self, module: str, name: str) -> Any:
        function = _array_parts.get((module.replace("numpy._core", "numpy.core"), name))
        if function is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR file needs")
        return function


class _Type:
    """Stands for numpy's dtype."""

    def __init__(self, name: str | bytes, *_: object) -> None:
        self.name = name.decode("latin1") if isinstance(name, bytes) else name

    def __setstate__(self, state: object) -> None:
        """The order of bytes is that of every machine of today, and the rest is for objects."""


class _Array:
    """Stands for an array: the bytes, and how to see them."""

    def __init__(self, *_: object) -> None:
        self.raw, self.kind = b"", ""
        self.shape: tuple[int, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, self.shape, kind, fortran, self.raw = state
        self.kind = "" if fortran else kind.name  # no CIFAR file has columns first


def _reconstruct(*_: object) -> _Array:
    return _Array()


def _frombuffer(raw: bytes, kind: _Type, shape: tuple[int, ...], order: str) -> _Array:
    made = _Array()
    made.__setstate__((1, shape, kind, order == "F", raw))
    return made


def _text_to_bytes(text: str, encoding: str) -> bytes:
    return text.encode("latin1")


def _array(value: object) -> np.ndarray:
    """Whole numbers: a list of them, or what an array's stand-in holds."""
    if isinstance(value, _Array) and value.kind in INTEGERS:
        return np.frombuffer(bytes(value.raw), value.kind).reshape(value.shape)
    if type(value) is list and all(type(number) is int for number in value):
        return np.array(value, np.int64)
    raise ValueError("it holds neither a list nor an array of whole numbers")


INTEGERS = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8")
_array_parts: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy.core.numeric", "_frombuffer"): _frombuffer,
    ("_codecs", "encode"): _text_to_bytes,
}


SOURCES = {
    name: Source(
        f"60,000 colour photographs, 32x32, {layout.classes} classes",
        partial(load, name=name),
        tuple(f"{layout.folder}/{file}" for file in (*layout.train, layout.test)),
        (layout.archive,),
    )
    for name, layout in LAYOUTS.items()
}
