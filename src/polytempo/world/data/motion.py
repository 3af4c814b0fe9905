"""Human activity from motion sensors: UCI-HAR (computed features) and HARBox (raw windows), both by user."""

import io
from pathlib import Path

import numpy as np

from polytempo.world.data.sources import Download, Source, check_labels, joined, reading
from polytempo.world.dataset import Dataset
from polytempo_client.disk.reading import memory_limit, read_plain

UCI_HAR_FEATURES = 561
UCI_HAR_FOLDERS = ("UCI HAR Dataset", "uci-har", "uci-har/UCI HAR Dataset")
HARBOX_NUMBERS = 10
"""In a line of a HARBox file: a time, and three axes each of accelerometer, gyroscope and magnetometer."""
HARBOX_LINES = 100
"""Of a window."""


def load_uci_har(data_dir: Path) -> Dataset:
    """Features as published (already within -1 .. 1); the users are the 30 subjects."""
    folder = next((data_dir / f for f in UCI_HAR_FOLDERS if (data_dir / f / "train").is_dir()), data_dir / "uci-har")
    parts = []
    for part in ("train", "test"):
        x = _read_table(folder / part / f"X_{part}.txt", UCI_HAR_FEATURES)
        labels, subjects = folder / part / f"y_{part}.txt", folder / part / f"subject_{part}.txt"
        y, users = (_read_table(path, 1)[:, 0].astype(np.int64) for path in (labels, subjects))
        for path, column in ((labels, y), (subjects, users)):
            with reading(path, f"{len(x):,} numbers, one for each row of X_{part}.txt (labels are 1 .. 6)"):
                if len(column) != len(x):
                    raise ValueError(f"it has {len(column):,}")
                check_labels(y - 1, 6, first=1)
        parts.append((x, y - 1, users))
    x, y, subjects_of_rows = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    users = np.unique(subjects_of_rows, return_inverse=True)[1].astype(np.int64)
    return Dataset("uci-har", x, y, classes=6, train_size=len(parts[0][0]), users=users)


def load_harbox(data_dir: Path) -> Dataset:
    """The measurements of each window of 100 lines as 900 numbers, as recorded. Users are the folders and classes the
    file names, both sorted. The set has no test part of its own."""
    root = data_dir / "harbox"
    paths = sorted(root.glob("*/*_train.txt"))
    if not paths:
        raise FileNotFoundError(2, "no such files", str(root / "*/*_train.txt"))
    users = sorted({path.parent.name for path in paths})
    classes = sorted({path.name for path in paths})
    windows = [_read_windows(path) for path in paths]
    sizes = [len(w) for w in windows]
    y = np.repeat([classes.index(path.name) for path in paths], sizes)
    owners = np.repeat([users.index(path.parent.name) for path in paths], sizes)
    x = joined(windows)
    return Dataset("harbox", x, y.astype(np.int64), len(classes), len(x), users=owners.astype(np.int64))


def _read_windows(path: Path) -> np.ndarray:
    """The measurements of every 100 lines, without their times. Lines left over at the end are dropped."""
    lines = _read_table(path, HARBOX_NUMBERS)[:, 1:]
    windows = len(lines) // HARBOX_LINES
    return lines[: windows * HARBOX_LINES].reshape(windows, HARBOX_LINES * (HARBOX_NUMBERS - 1))


def _read_table(path: Path, columns: int) -> np.ndarray:
    """A text file of numbers, separated by spaces or commas."""
    with reading(path, f"lines of {columns} numbers, separated by spaces or commas"):
        text = read_plain(path, memory_limit()).decode().replace(",", " ")
        if not text.strip():
            return np.empty((0, columns), np.float32)
        for number, line in enumerate(text.splitlines(), 1):
            found = len(line.split())
            if found not in (0, columns):
                raise ValueError(f"line {number} has {found} numbers")
        table = np.loadtxt(io.StringIO(text), np.float32, ndmin=2)
        if not np.isfinite(table).all():
            raise ValueError(f"row {np.flatnonzero(~np.isfinite(table).all(1))[0] + 1} has a number that is not finite")
        return table


SOURCES = {
    "uci-har": Source(
        "10,299 windows of smartphone motion by 30 subjects, 561 features, 6 activities",
        load_uci_har,
        tuple(f"uci-har/{part}/{file}_{part}.txt" for part in ("train", "test") for file in ("X", "y", "subject")),
        (Download("uci-har/UCI HAR Dataset.zip", unpack_to="."),),
    ),
    "harbox": Source(
        "windows of smartphone motion by user, 900 numbers",
        load_harbox,
        ("harbox/USER/CLASS_train.txt (a folder per user, in it a file per class)",),
        (Download("harbox/harbox.zip", unpack_to="."),),
    ),
}
