"""Data as Python objects: arrays, frames, data sets of torch and Hugging Face, and clients that own some of these.

Packages are known by the names of their types, so none of them has to be installed, or imported, for the others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from polytempo.core.errors import UserError
from polytempo.core.given import described
from polytempo.world.data.own import from_arrays
from polytempo.world.data.sources import normalised
from polytempo.world.dataset import Dataset, Labels

EXPECTED = (
    "a name, (x, y) or (x, y, x_test, y_test) as arrays or tensors, a pandas or polars frame, a torch or Hugging Face "
    "data set, a polytempo Dataset, or a dict of clients to any of these"
)
LABELS = ("label", "y")
"""Columns that are the label where the user names none."""


@dataclass(frozen=True)
class Columns:
    """How columns, and numbers, are to be read."""

    label: str | tuple[str, ...] | None = None
    features: str | tuple[str, ...] | None = None
    vocabulary: int | None = None
    """Samples are tokens, whole numbers below this."""
    labels: Labels = "classes"


class Parts(NamedTuple):
    """Arrays of samples and labels, and of test samples where there are any."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray | None = None
    y_test: np.ndarray | None = None


Rows = list[tuple[np.ndarray, np.ndarray]]
"""For each client its train rows and its test rows."""


def dataset_of(data: object, columns: Columns) -> tuple[Dataset, Rows | None]:
    """A data set of an object; and the rows of each client, where it is a dict of clients with test samples of their
    own."""
    if isinstance(data, Dataset):
        return data, None
    try:
        if isinstance(data, Mapping) and not _is_splits(data):
            return _federated(data, columns)
        return _dataset([_parts(data, columns)], columns, None), None
    except ValueError as error:
        raise UserError(f"data is {described(data)}: {error}. Expected {EXPECTED}.") from None


def _federated(data: Mapping[Any, object], columns: Columns) -> tuple[Dataset, Rows | None]:
    """Client i is the i-th of the dict."""
    if not data:
        raise ValueError("there are no clients in it")
    each: list[Parts] = []
    for name, own in data.items():
        try:
            each.append(_parts(own, columns))
        except ValueError as error:
            raise ValueError(f"client {name!r} has {described(own)}: {error}") from None
    tested = [parts.x_test is not None for parts in each]
    if len(set(tested)) > 1:
        raise ValueError(f"client {list(data)[tested.index(False)]!r} has no test samples, and others have some")
    shapes = {parts.x.shape[1:] for parts in each}
    if len(shapes) > 1:
        raise ValueError(f"samples of its clients have several shapes ({', '.join(map(str, sorted(shapes)))})")
    train = [len(parts.x) for parts in each]
    if not tested[0]:
        return _dataset(each, columns, np.repeat(np.arange(len(each)), train)), None
    sizes = [*train, *(len(parts.x_test) for parts in each if parts.x_test is not None)]
    rows = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    users = np.repeat(np.tile(np.arange(len(each)), 2), sizes)
    return _dataset(each, columns, users), list(zip(rows[: len(each)], rows[len(each) :], strict=True))


def _dataset(each: Sequence[Parts], columns: Columns, users: np.ndarray | None) -> Dataset:
    """One data set of the parts of all clients: what they train on, client by client, and then what they test on."""
    tests = [(parts.x_test, parts.y_test) for parts in each if parts.x_test is not None and parts.y_test is not None]
    x, y = (np.concatenate(part) for part in zip(*((parts.x, parts.y) for parts in each), strict=True))
    x_test, y_test = (np.concatenate(part) for part in zip(*tests, strict=True)) if tests else (None, None)
    made = from_arrays("objects", x, y, x_test, y_test, users, labels=columns.labels)
    return made if columns.vocabulary is None else _tokens(made, columns.vocabulary)


def _tokens(made: Dataset, vocabulary: int) -> Dataset:
    if (made.x != np.round(made.x)).any() or made.x.min() < 0 or made.x.max() >= vocabulary:
        raise ValueError(f"with vocabulary={vocabulary}, samples must be whole numbers from 0 to {vocabulary - 1}")
    return replace(made, x=made.x.astype(np.int64), vocabulary=vocabulary)


def _parts(data: object, columns: Columns) -> Parts:
    """The arrays of one of the kinds of data."""
    package = type(data).__module__.partition(".")[0]
    if package in ("pandas", "polars") and hasattr(data, "columns"):
        return Parts(*_of_columns({str(name): data[name].to_numpy() for name in data.columns}, columns))  # type: ignore[index]
    if _is_splits(data):
        return _of_splits(data, columns)
    if _is_hugging_face(data):
        return Parts(*_of_hugging_face(data, columns))
    if isinstance(data, list | tuple) and len(data) in (2, 4):
        return _checked(Parts(*map(_array, data)))
    numbered = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    if numbered and not isinstance(data, Sequence | Mapping) and not hasattr(data, "shape"):
        return _of_samples(data)
    raise ValueError("this is no kind of data")


def _array(given: Any) -> np.ndarray:
    """An array of arrays, tensors, frames, series and lists."""
    return np.asarray(given.detach().cpu() if hasattr(given, "detach") else given)


def _checked(parts: Parts) -> Parts:
    for name, array in parts._asdict().items():
        if array is not None and name.startswith("x") and array.dtype.kind not in "biuf":
            raise ValueError(f"{name} holds {array.dtype}, not numbers")
    for name, x, y in (("", parts.x, parts.y), ("_test", parts.x_test, parts.y_test)):
        if x is not None and y is not None and x.shape[:1] != y.shape[:1]:
            raise ValueError(f"x{name} has shape {x.shape} and y{name} {y.shape}")
    return parts


def _of_columns(found: Mapping[str, np.ndarray], columns: Columns) -> tuple[np.ndarray, np.ndarray]:
    """Samples and labels of a frame's columns."""
    labels = _label_columns(list(found), columns)
    chosen = columns.features if columns.features is not None else tuple(n for n in found if n not in labels)
    features = (chosen,) if isinstance(chosen, str) else tuple(chosen)
    _check_there(found, [*labels, *features])
    for name in features:
        if found[name].dtype.kind not in "biuf":
            raise ValueError(
                f"column {name!r} holds {found[name].dtype}, not numbers: encode it, leave it out of features, or name "
                "it as label"
            )
        if found[name].dtype.kind == "f" and not np.isfinite(found[name]).all():
            raise ValueError(f"column {name!r} has values that are missing or not finite")
    if not features:
        raise ValueError("there is no column of features")
    alone = len(features) == 1 and found[features[0]].ndim > 1  # an image or a list per row
    x = found[features[0]] if alone else np.stack([found[name].astype(np.float32) for name in features], axis=1)
    y = found[labels[0]] if len(labels) == 1 else np.stack([found[name] for name in labels], axis=1)
    return x, _named(y)


def _named(y: np.ndarray) -> np.ndarray:
    """Labels that are text or other objects as text, so that they can be sorted."""
    return y.astype(str) if y.dtype == object else y


def _label_columns(found: Sequence[str], columns: Columns) -> tuple[str, ...]:
    if columns.label is not None:
        return (columns.label,) if isinstance(columns.label, str) else tuple(columns.label)
    usual = [name for name in LABELS if name in found]
    if not usual:
        raise ValueError(f"name the column of the label (label=...); there are {', '.join(found)}")
    return (usual[0],)


def _check_there(found: Mapping[str, object], wanted: Sequence[str]) -> None:
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ValueError(f"there is no column {missing[0]!r}; there are {', '.join(found)}")


def _is_hugging_face(data: object) -> bool:
    return type(data).__module__.partition(".")[0] == "datasets" and hasattr(data, "column_names")


def _is_splits(data: object) -> bool:
    """A Hugging Face dictionary of train and test parts: not one of clients."""
    return _is_hugging_face(data) and isinstance(data, Mapping)


def _of_splits(data: Any, columns: Columns) -> Parts:
    if "train" not in data:
        raise ValueError(f"it has no train part; there are {', '.join(data)}")
    test = _of_hugging_face(data["test"], columns) if "test" in data else ()
    return Parts(*_of_hugging_face(data["train"], columns), *test)


def _of_hugging_face(data: Any, columns: Columns) -> tuple[np.ndarray, np.ndarray]:
    """Images become channels x height x width, scaled to -1 .. 1 as those of a folder."""
    whole = data.with_format("numpy")[:]
    images = {name for name, kind in data.features.items() if type(kind).__name__ == "Image"}
    return _of_columns({name: _pictures(of) if name in images else of for name, of in whole.items()}, columns)


def _pictures(images: np.ndarray) -> np.ndarray:
    sizes = {np.shape(image) for image in images}
    if len(sizes) > 1:
        raise ValueError(f"images have several shapes ({', '.join(map(str, sorted(sizes)))})")
    pixels = np.stack(list(images))
    pixels = pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)
    return normalised([pixels], (0.5,) * pixels.shape[1], (0.5,) * pixels.shape[1])


def _of_samples(data: Any) -> Parts:
    """A torch data set, or whatever has a length and gives (x, y) by number. Each sample is read once."""
    samples = [data[i] for i in range(len(data))]
    if not samples:
        raise ValueError("there are no samples")
    if not isinstance(samples[0], list | tuple) or len(samples[0]) != 2:
        raise ValueError(f"its samples are {described(samples[0])}, not (x, y)")
    each = [(_array(x), _array(y)) for x, y in samples]
    for what, arrays in zip("xy", zip(*each, strict=True), strict=True):
        shapes = {array.shape for array in arrays}
        if len(shapes) > 1:
            raise ValueError(f"{what} has several shapes ({', '.join(map(str, sorted(shapes)[:4]))})")
    return _checked(Parts(np.stack([x for x, _ in each]), np.stack([y for _, y in each])))
