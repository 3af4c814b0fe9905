"""Proxy sets: samples of each cluster that the server has of its own (CDFL), in memory and as a file."""

from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from polytempo.core.disk.files import write_whole
from polytempo.core.disk.reading import read_npz
from polytempo.core.errors import UserError
from polytempo.world.federation import Federation

EXPECTED = "an .npz with x (samples x ...), y (labels from 0) and cluster (0 .. K - 1), one of each per sample"


ProxySource = Path | int | Literal["default"]
"""Of proxy sets: a file, or samples of each cluster to set aside."""


class ProxyData(NamedTuple):
    """The samples of all proxy sets: those of cluster k are ``offsets[k]:offsets[k + 1]``."""

    x: np.ndarray
    y: np.ndarray
    offsets: np.ndarray
    classes: int
    vocabulary: int | None = None
    """Number of distinct tokens, for text."""


def parse_proxies(words: str) -> ProxySource | None:
    """Where the words say that proxy sets come from: a number of samples of each cluster to set aside, ``default``, or
    a file; None for empty words."""
    if words in ("", "default"):
        return "default" if words else None
    return int(words) if words.isdecimal() else Path(words)


def proxies_of(federation: Federation) -> ProxyData:
    """What a federation set aside for its server."""
    if not federation.clusters:
        raise ValueError("this federation was made without proxies")
    dataset, rows = federation.dataset, np.concatenate([cluster.proxy for cluster in federation.clusters])
    offsets = _offsets([len(cluster.proxy) for cluster in federation.clusters])
    return ProxyData(dataset.x[rows], dataset.y[rows], offsets, dataset.classes, dataset.vocabulary)


def read_proxies(path: Path) -> ProxyData:
    """Proxy sets from a file of arrays ``x``, ``y`` and ``cluster``, in any order of samples, and where it says so
    ``classes`` and, for text, ``vocabulary``."""
    try:
        return _checked(read_npz(path, ("x", "y", "cluster", "classes", "vocabulary")))
    except OSError as error:
        raise UserError(f"Cannot read the proxy sets {path}: {error.strerror or error}. Expected {EXPECTED}.") from None
    except ValueError as error:
        raise UserError(f"{path} holds no proxy sets: {error}. Expected {EXPECTED}.") from None


def write_proxies(path: Path, data: ProxyData, mode: int = 0o644) -> None:
    """Write what ``read_proxies`` reads, in one piece."""
    arrays: dict[str, Any] = {"x": data.x, "y": data.y, "classes": data.classes}
    arrays["cluster"] = np.repeat(np.arange(len(data.offsets) - 1), np.diff(data.offsets))
    if data.vocabulary is not None:
        arrays["vocabulary"] = data.vocabulary

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez(file, **arrays)

    write_whole(path, write, mode)


def check_proxies(data: ProxyData, shape: tuple[int, ...], classes: int, vocabulary: int | None = None) -> None:
    """Refuse proxy sets that the model of a data set with such samples cannot take."""
    if data.x.shape[1:] != shape:
        raise UserError(
            f"The samples of the proxy sets have the shape {data.x.shape[1:]}, those of the data {shape}. Take proxy "
            "sets that were made from the same data."
        )
    if data.y.max() >= classes:
        raise UserError(
            f"The proxy sets have label {data.y.max()}. The labels of the data are numbered 0 to {classes - 1}."
        )
    if data.vocabulary is not None and vocabulary is None:
        raise UserError("The proxy sets are tokens of text, and the data are not. Take proxy sets of the same data.")
    if vocabulary is not None and (data.vocabulary is None or data.x.max() >= vocabulary):
        raise UserError(
            f"The data are text of {vocabulary} distinct tokens. Expected proxy sets of these, with their number as "
            "vocabulary."
        )


def _checked(arrays: dict[str, np.ndarray]) -> ProxyData:
    """ValueError says what is wrong."""
    missing = [name for name in ("x", "y", "cluster") if name not in arrays]
    if missing:
        raise ValueError(f"there is no array {missing[0]!r}")
    x, samples = arrays["x"], len(np.atleast_1d(arrays["x"]))
    if x.ndim < 2 or x.dtype.kind not in "biuf":
        raise ValueError(f"x is {x.dtype} of shape {x.shape}, not numbers, samples x features")
    for name in ("y", "cluster"):
        if arrays[name].shape != (samples,) or arrays[name].dtype.kind not in "iu":
            found = f"{arrays[name].dtype} of shape {arrays[name].shape}"
            raise ValueError(f"{name} is {found}, not {samples} whole numbers, as many as x has samples")
    if not samples:
        raise ValueError("there are no samples")
    y, cluster = arrays["y"].astype(np.int64), arrays["cluster"].astype(np.int64)
    classes = _number(arrays, "classes", int(y.max()) + 1)
    assert classes is not None
    if y.min() < 0 or y.max() >= classes:
        raise ValueError(f"labels are {y.min()} .. {y.max()}, not within 0 .. {classes - 1}")
    vocabulary = _number(arrays, "vocabulary", None)
    _check_values(x, vocabulary)
    if cluster.min() < 0 or cluster.max() >= samples:
        raise ValueError(f"clusters are {cluster.min()} .. {cluster.max()}, which is not 0 .. K - 1 for any K")
    sizes = np.bincount(cluster)
    if sizes.min() == 0:
        raise ValueError(f"cluster {sizes.argmin()} of {len(sizes)} has no samples")
    order = np.argsort(cluster, kind="stable")
    features = np.ascontiguousarray(x[order], np.float32 if vocabulary is None else np.int64)
    return ProxyData(features, y[order], _offsets(sizes), classes, vocabulary)


def _check_values(x: np.ndarray, vocabulary: int | None) -> None:
    if vocabulary is None:
        with np.errstate(over="ignore"):
            finite = np.isfinite(x.astype(np.float32)).all()
        if not finite:
            raise ValueError("x has values that are not finite, or too large for float32")
    elif x.dtype.kind not in "iu" or x.min() < 0 or x.max() >= vocabulary:
        raise ValueError(f"x is not tokens within 0 .. {vocabulary - 1}, the vocabulary")


def _number(arrays: dict[str, np.ndarray], name: str, default: int | None) -> int | None:
    if name not in arrays:
        return default
    found = arrays[name]
    if found.shape != () or found.dtype.kind not in "iu" or found < 1:
        raise ValueError(f"{name} is {found!r}, not one whole number")
    return int(found)


def _offsets(sizes: Any) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
