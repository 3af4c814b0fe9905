"""The user's own data: an .npz or .csv file, a folder of images, or a Python function."""

from io import TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np

from polytempo.core.disk.reading import check_memory, npz_names, read_npz
from polytempo.core.errors import UserError
from polytempo.world.data.separators import separated
from polytempo.world.data.sources import normalised, reading
from polytempo.world.dataset import Dataset, Labels
from polytempo_client.disk.reading import open_plain
from polytempo_client.imports import from_import_path

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")


def from_arrays(
    name: str,
    x: Any,
    y: Any,
    x_test: Any = None,
    y_test: Any = None,
    users: Any = None,
    classes: Any = None,
    labels: Labels = "classes",
) -> Dataset:
    """A data set of arrays. Features become float32; the distinct labels, and the distinct users, are numbered from 0
    in sorted order. With ``classes``, their number, labels are 0 .. classes - 1 as they are: data that change keep
    their labels also when one of them is gone. Labels that are ``numbers``, or ``several`` per sample, stay so."""
    if (x_test is None) != (y_test is None):
        raise ValueError("one of x_test and y_test is missing")
    features, given = [np.asarray(x)], [np.asarray(y)]
    if x_test is not None:
        features, given = [*features, np.asarray(x_test)], [*given, np.asarray(y_test)]
    if len({f.shape[1:] for f in features}) > 1:
        raise ValueError(f"samples of x are {features[0].shape[1:]}, those of x_test {features[1].shape[1:]}")
    if features[0].ndim < 2 or 0 in features[0].shape[1:]:
        raise ValueError(f"x has shape {features[0].shape}, not samples x features")
    if labels == "classes":
        given = [y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y for y in given]
    for part, part_x, part_y in zip(("", "_test"), features, given, strict=False):
        if part_y.shape[:1] != (len(part_x),):
            raise ValueError(f"x{part} has {len(part_x):,} samples and y{part} has shape {part_y.shape}")
        if part_y.ndim > (1 if labels == "classes" else 2):
            raise ValueError(f"y{part} has shape {part_y.shape}, not one label per sample (for more, set the goal)")
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused below
        all_x = np.concatenate(features, dtype=np.float32, casting="unsafe")
    all_y = np.concatenate(given)
    if not len(all_x):
        raise ValueError("there are no samples")
    if not np.isfinite(all_x).all():
        raise ValueError("x has values that are not finite float32 numbers")
    read, count = _numbered(all_y, classes) if labels == "classes" else _as_numbers(all_y, labels)
    return Dataset(
        name,
        all_x,
        read,
        classes=count,
        train_size=len(features[0]),
        users=None if users is None else _numbered_users(np.asarray(users), len(all_x)),
    )


def _numbered(y: np.ndarray, classes: Any) -> tuple[np.ndarray, int]:
    """Classes by number, and how many there are."""
    if y.dtype.kind == "f" and (y != np.round(y)).any():
        raise ValueError("labels are not whole numbers or names (for regression, set the goal)")
    known, numbered = np.unique(y, return_inverse=True)
    if classes is not None:
        known, numbered = np.arange(int(classes)), y
        if y.dtype.kind not in "iuf" or y.min() < 0 or y.max() >= len(known):
            raise ValueError(f"classes is {int(classes)}, and labels are not 0 .. {int(classes) - 1}")
    return numbered.astype(np.int64), len(known)


def _as_numbers(y: np.ndarray, labels: Labels) -> tuple[np.ndarray, int]:
    """Labels that are numbers, and how many each sample has."""
    if y.dtype.kind not in "biuf" or not np.isfinite(y).all():
        raise ValueError(f"labels are {y.dtype}, not finite numbers")
    if labels == "several" and y.ndim != 2:
        raise ValueError(f"y has shape {y.shape}. With several labels it is samples x labels, each 0 or 1")
    if labels == "several" and not np.isin(y, (0, 1)).all():
        raise ValueError(f"y holds {y[~np.isin(y, (0, 1))][0]:g}. With several labels each is 0 or 1")
    return y.astype(np.float32), 1 if y.ndim == 1 else y.shape[1]


def load_npz(path: Path, labels: Labels = "classes") -> Dataset:
    """Arrays x and y, and if there are any x_test, y_test, users (of x, then of x_test) and classes."""
    expected = "an .npz with x (samples x ...) and y, and optionally x_test and y_test, users, classes"
    with reading(path, expected):
        parts = read_npz(path, ("x", "y", "x_test", "y_test", "users", "classes"))
        if "x" not in parts or "y" not in parts:
            raise ValueError(f"it has {npz_names(path)}")
        return from_arrays(path.stem, **parts, labels=labels)


def load_csv(path: Path, labels: Labels = "classes") -> Dataset:
    """Numeric features and a label per row, separated by commas, semicolons, tabs or bars. The first row is a header if
    one of its cells but the last is no number, or one is called ``label`` or ``y``; the label is the column of that
    name, otherwise the last."""
    with reading(path, "rows of numeric features and a label, separated by commas, semicolons, tabs or bars"):
        with open_plain(path) as file:
            rows, by = separated(TextIOWrapper(file, encoding="utf-8-sig", newline=""))
        if not rows or len(rows[0]) < 2:
            raise ValueError("there are no rows of at least two columns")
        column, header = len(rows[0]) - 1, [cell.strip().lower() for cell in rows[0]]
        named = [i for i, cell in enumerate(header) if cell in ("label", "y")]
        if named or not all(map(_is_number, header[:-1])):
            rows = rows[1:]
            column = named[0] if named else column
        x = np.empty((len(rows), len(header) - 1), np.float32)
        last = []
        for i, row in enumerate(rows):
            if len(row) != len(header):
                raise ValueError(f"data row {i + 1} has {len(row)} columns separated by {by}, the first {len(header)}")
            last.append(row.pop(column).strip())
            try:
                x[i] = row
            except ValueError as error:
                raise ValueError(
                    f"data row {i + 1}: {error}{_decimal_comma(row)} (columns separated by {by})"
                ) from None
        if "" in last:
            raise ValueError(f"data row {last.index('') + 1} has no label")
        return from_arrays(path.stem, x, _numbers_if_all_are(last), labels=labels)


def _decimal_comma(row: list[str]) -> str:
    """A hint for numbers such as 1,5."""
    found = any("," in cell and _is_number(cell.replace(",", ".", 1)) for cell in row)
    return ", write numbers with a point" if found else ""


def load_folder(root: Path) -> Dataset:
    """Images of one size in ROOT/CLASS/, or in ROOT/train/CLASS/ and ROOT/test/CLASS/; values scaled to -1 .. 1."""
    train, test = root / "train", root / "test"
    own_parts = train.is_dir() and any(path.is_dir() for path in train.iterdir())
    train_paths = _images_below(train if own_parts else root)
    test_paths = _images_below(test) if own_parts else []
    if not train_paths:
        raise UserError(
            f"{root} holds no images. Expected {root}/CLASS/*.png (or .jpg), or {train}/CLASS and {test}/CLASS."
        )
    images = _read_images(train_paths + test_paths)
    channels = images.shape[1]
    labels = [path.parent.name for path in train_paths + test_paths]
    known, y = np.unique(labels, return_inverse=True)
    x = normalised([images], (0.5,) * channels, (0.5,) * channels)
    return Dataset(root.resolve().name, x, y.astype(np.int64), len(known), len(train_paths))


def load_callable(import_path: str, labels: Labels = "classes") -> Dataset:
    """What ``package.module:function`` or ``file.py:function`` returns: a Dataset, (x, y) or
    (x, y, x_test, y_test)."""
    expected = "a function without arguments that returns a Dataset, (x, y) or (x, y, x_test, y_test)"
    try:
        made = from_import_path(import_path, "data set")()
        if isinstance(made, Dataset):
            return made
        if not isinstance(made, tuple) or len(made) not in (2, 4):
            raise TypeError(f"it returned a {type(made).__name__}")
        x, y, x_test, y_test = (*made, None, None)[:4]
        return from_arrays(import_path.rpartition(":")[2], x, y, x_test, y_test, labels=labels)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"Data set {import_path!r} failed: {type(error).__name__}: {error}. Expected {expected}."
        ) from error


def _numbered_users(users: np.ndarray, samples: int) -> np.ndarray:
    if users.shape != (samples,):
        raise ValueError(f"users has shape {users.shape} for {samples:,} samples (x, then x_test)")
    return np.unique(users, return_inverse=True)[1].astype(np.int64)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _numbers_if_all_are(labels: list[str]) -> np.ndarray:
    """So that 10 sorts after 9."""
    return np.array(labels, np.float64) if all(map(_is_number, labels)) else np.array(labels)


def _read_images(paths: list[Path]) -> np.ndarray:
    """Bytes, images x channels x height x width: grey if all images are grey, otherwise red, green and blue."""
    try:
        from PIL import Image
    except ImportError:
        raise UserError("Images need the package pillow. Install it: pip install 'polytempo[images]'.") from None
    modes, sizes = [], []
    for path in paths:
        with (
            reading(path, "a png or jpg image"),
            open_plain(path) as file,
            Image.open(file) as image,
        ):  # only its header
            modes.append(image.mode)
            sizes.append(image.size)
    (width, height), mode = sizes[0], "L" if set(modes) <= {"1", "L"} else "RGB"
    with reading(paths[0], "images that fit into memory together"):
        check_memory(len(paths) * height * width * len(mode), f"{len(paths):,} images of {width}x{height}")
    images = np.empty((len(paths), height, width, len(mode)), np.uint8)
    for target, path, size in zip(images, paths, sizes, strict=True):
        if size != (width, height):
            raise UserError(f"{path} is {size[0]}x{size[1]}, {paths[0]} {width}x{height}. Bring all to one size.")
        with reading(path, "a png or jpg image"), open_plain(path) as file, Image.open(file) as image:
            target[...] = np.asarray(image.convert(mode)).reshape(target.shape)
    return images.transpose(0, 3, 1, 2)


def _images_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*/*") if path.suffix.lower() in IMAGE_SUFFIXES)
