"""Data as Python objects: arrays, frames, data sets of torch and Hugging Face, and clients that own some of these.

Packages are known by the names of their types, so none of them has to be installed, or imported, for the others."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from polytempo.core.errors import UserError
from polytempo.core.given import described
from polytempo.world.data.columns import Columns, as_labels, of_columns
from polytempo.world.data.own import from_arrays
from polytempo.world.data.sources import normalised
from polytempo.world.dataset import Dataset

EXPECTED = (
    "a name, (x, y) or (x, y, x_test, y_test) as arrays or tensors, a pandas or polars frame, a torch or Hugging Face "
    "data set, a polytempo Dataset, or a dict of clients to any of these"
)


class Parts(NamedTuple):
    """Arrays of samples and labels, and of test samples where there are any."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray | None = None
    y_test: np.ndarray | None = None


Rows = list[tuple[np.ndarray, np.ndarray]]
"""For each client its train rows and its test rows."""


def dataset_of(data: object, columns: Columns, least: int = 0) -> tuple[Dataset, Rows | None]:
    """A data set of an object; and the rows of each client, where it is a dict of clients with test samples of their
    own. A client needs at least ``least`` samples."""
    if isinstance(data, Dataset):
        return data, None
    try:
        if isinstance(data, Mapping) and not _is_splits(data):
            return _federated(data, columns, least)
        return _dataset([_parts(data, columns)], columns, None), None
    except ValueError as error:
        raise UserError(f"data is {described(data)}: {error}.") from None


def _federated(data: Mapping[Any, object], columns: Columns, least: int) -> tuple[Dataset, Rows | None]:
    """Client i is the i-th of the dict."""
    if not data:
        raise ValueError("there are no clients in it. Expected a dict of clients to their data")
    if set(data) <= {"train", "test", "validation"}:
        keys = ", ".join(data)
        raise ValueError(
            f"its keys are {keys}. Expected one for each client. Parts are given as (x, y, x_test, y_test)"
        )
    each: list[Parts] = []
    for name, own in data.items():
        try:
            each.append(_parts(own, columns))
        except ValueError as error:
            raise ValueError(f"client {name!r} has {described(own)}: {error}") from None
    _check_alike(list(data), each, least)
    train = [len(parts.x) for parts in each]
    if each[0].x_test is None:
        return _dataset(each, columns, np.repeat(np.arange(len(each)), train)), None
    sizes = [*train, *(len(parts.x_test) for parts in each if parts.x_test is not None)]
    rows = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    users = np.repeat(np.tile(np.arange(len(each)), 2), sizes)
    return _dataset(each, columns, users), list(zip(rows[: len(each)], rows[len(each) :], strict=True))


def _check_alike(names: Sequence[object], each: Sequence[Parts], least: int) -> None:
    """Clients have enough samples, of one shape, with labels of one kind, and all have test samples or none has."""
    first = each[0]
    for name, parts in zip(names, each, strict=True):
        count = sum(len(x) for x in (parts.x, parts.x_test) if x is not None)
        if count < least:
            few = f"client {name!r} has too few samples ({count})"
            raise ValueError(f"{few}. Expected at least {least} (min_samples): leave it out")
        if (parts.x_test is None) != (first.x_test is None):
            without = name if parts.x_test is None else names[0]
            raise ValueError(f"client {without!r} has no test samples, and others have some. Expected all or none")
        if parts.x.shape[1:] != first.x.shape[1:]:
            shapes = f"{first.x.shape[1:]} of {names[0]!r}, {parts.x.shape[1:]} of {name!r}"
            raise ValueError(f"samples of its clients have several shapes: {shapes}. Expected one")
        if (parts.y.dtype.kind in "US") != (first.y.dtype.kind in "US"):
            kinds = f"{first.y.dtype} of {names[0]!r}, {parts.y.dtype} of {name!r}"
            raise ValueError(f"labels of its clients have several types: {kinds}. Expected numbers only or text only")


def _dataset(each: Sequence[Parts], columns: Columns, users: np.ndarray | None) -> Dataset:
    """One data set of the parts of all clients: what they train on, client by client, and then what they test on."""
    tests = [(parts.x_test, parts.y_test) for parts in each if parts.x_test is not None and parts.y_test is not None]
    x, y = (np.concatenate(part) for part in zip(*((parts.x, parts.y) for parts in each), strict=True))
    x_test, y_test = (np.concatenate(part) for part in zip(*tests, strict=True)) if tests else (None, None)
    made = from_arrays("data", x, y, x_test, y_test, users, labels=columns.labels)
    if made.has_classes and made.classes < 2:
        raise ValueError("all labels are alike. Expected at least two classes (for numbers, set the goal)")
    return made if columns.vocabulary is None else _tokens(made, columns.vocabulary)


def _tokens(made: Dataset, vocabulary: int) -> Dataset:
    if (made.x != np.round(made.x)).any() or made.x.min() < 0 or made.x.max() >= vocabulary:
        raise ValueError(f"with vocabulary={vocabulary}, samples must be whole numbers from 0 to {vocabulary - 1}")
    return replace(made, x=made.x.astype(np.int64), vocabulary=vocabulary)


def _parts(data: object, columns: Columns) -> Parts:
    """The arrays of one of the kinds of data."""
    package = type(data).__module__.partition(".")[0]
    if package in ("pandas", "polars") and type(data).__name__ == "DataFrame":
        return Parts(*_of_frame(data, columns))
    if package == "polars" and type(data).__name__ == "LazyFrame":
        raise ValueError("it is not collected. Expected a DataFrame: data.collect()")
    if _is_splits(data):
        return _of_splits(data, columns)
    if package == "datasets" and hasattr(data, "column_names"):
        return Parts(*_of_hugging_face(data, columns))
    if columns.named:
        raise ValueError(f"{columns.named} names a column, and there are none. Expected a frame, or no {columns.named}")
    if isinstance(data, list | tuple) and len(data) in (2, 4):
        return _checked(Parts(*map(_array, Parts._fields, data)))
    if _has_samples(data) and not isinstance(data, Sequence | Mapping | type) and not hasattr(data, "shape"):
        return _of_samples(data)
    raise ValueError(f"this is no kind of data. Expected {EXPECTED}")


def _has_samples(data: object) -> bool:
    return hasattr(data, "__len__") and hasattr(data, "__getitem__")


def _array(name: str, given: Any) -> np.ndarray:
    """An array of arrays, tensors, frames, series and lists."""
    if hasattr(given, "detach"):
        given = given.detach().cpu()
        given = given.float() if str(given.dtype) == "torch.bfloat16" else given
    elif given is None or type(given).__module__.partition(".")[0] in ("PIL", "torch"):
        raise ValueError(f"{name} is {described(given)}. Expected an array")
    if np.ma.is_masked(given):
        raise ValueError(f"{name} is {described(given)} with masked entries. Expected a value for each")
    try:
        return np.asarray(given)
    except (ValueError, TypeError):
        raise ValueError(f"{name} is {described(given)}. Expected an array, or equally long lists of numbers") from None


def _checked(parts: Parts) -> Parts:
    for name, array in parts._asdict().items():
        if array is not None and name.startswith("x") and array.dtype.kind not in "biuf":
            raise ValueError(f"{name} holds {array.dtype}. Expected numbers")
    for test, x, y in (("", parts.x, parts.y), ("_test", parts.x_test, parts.y_test)):
        if x is not None and y is not None and x.shape[:1] != y.shape[:1]:
            raise ValueError(f"x{test} has shape {x.shape} and y{test} {y.shape}. Expected one label per sample")
    y_test = None if parts.y_test is None else as_labels(parts.y_test, "y_test")
    return parts._replace(y=as_labels(parts.y, "y"), y_test=y_test)


def _of_frame(data: Any, columns: Columns) -> tuple[np.ndarray, np.ndarray]:
    names = list(map(str, data.columns))
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"several columns are called {twice!r}. Expected different names")
    found = (data[name].to_numpy() for name in data.columns)
    return of_columns(dict(zip(names, found, strict=True)), columns)


def _is_splits(data: object) -> bool:
    """A Hugging Face dictionary of train and test parts: not one of clients."""
    return type(data).__module__.partition(".")[0] == "datasets" and isinstance(data, Mapping)


def _of_splits(data: Any, columns: Columns) -> Parts:
    if "train" not in data:
        raise ValueError(f"it has no train part. Expected one beside {', '.join(data)}")
    test = _of_hugging_face(data["test"], columns) if "test" in data else ()
    return Parts(*_of_hugging_face(data["train"], columns), *test)


def _of_hugging_face(data: Any, columns: Columns) -> tuple[np.ndarray, np.ndarray]:
    """Images become channels x height x width, scaled to -1 .. 1 as those of a folder."""
    if not hasattr(data, "__len__"):
        raise ValueError("it streams its samples. Expected a Dataset, which has a length: load it without streaming")
    whole = data.with_format("numpy")[:]
    images = {name for name, kind in data.features.items() if type(kind).__name__ == "Image"}
    return of_columns({name: _pictures(of) if name in images else of for name, of in whole.items()}, columns)


def _pictures(images: np.ndarray) -> np.ndarray:
    sizes = {np.shape(image) for image in images}
    if len(sizes) > 1:
        raise ValueError(f"images have several shapes ({', '.join(map(str, sorted(sizes)[:4]))}). Expected one")
    pixels = np.stack(list(images))
    pixels = pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)
    return normalised([pixels], (0.5,) * pixels.shape[1], (0.5,) * pixels.shape[1])


def _of_samples(data: Any) -> Parts:
    """A torch data set, or whatever has a length and gives (x, y) by number. Each sample is read once."""
    samples = [_sample(data, i) for i in range(len(data))]
    if not samples:
        raise ValueError("there are no samples")
    each = [(_array("x", x), _array("y", y)) for x, y in samples]
    for what, arrays in zip("xy", zip(*each, strict=True), strict=True):
        shapes = {array.shape for array in arrays}
        if len(shapes) > 1:
            raise ValueError(f"{what} has several shapes ({', '.join(map(str, sorted(shapes)[:4]))}). Expected one")
    return _checked(Parts(np.stack([x for x, _ in each]), np.stack([y for _, y in each])))


def _sample(data: Any, number: int) -> tuple[Any, Any]:
    try:
        sample = data[number]
    except Exception as error:
        raise ValueError(f"its sample {number} cannot be read ({type(error).__name__}: {error})") from error
    if not isinstance(sample, list | tuple) or len(sample) != 2:
        raise ValueError(f"its samples are {described(sample)}. Expected (x, y)")
    return sample[0], sample[1]
