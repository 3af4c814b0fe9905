"""FEMNIST: handwritten characters by writer, as the LEAF benchmark writes them (json files of users)."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from polytempo.world.data.sources import Download, Source, check_labels, joined, reading
from polytempo.world.dataset import Dataset
from polytempo_client.disk.reading import memory_limit, read_plain

CLASSES = 62


class _Part(NamedTuple):
    """The users of train/ or of test/, one entry each."""

    names: list[str]
    images: list[np.ndarray]
    labels: list[np.ndarray]


def load(data_dir: Path) -> Dataset:
    """All users of train/*.json, then those of test/*.json; a user's number is its place among all sorted names."""
    train, test = (_read_part(data_dir / "femnist" / part) for part in ("train", "test"))
    number = {name: i for i, name in enumerate(sorted({*train.names, *test.names}))}
    labels = train.labels + test.labels
    users = np.repeat([number[name] for name in train.names + test.names], [len(y) for y in labels])
    images = train.images + test.images
    train.images.clear()
    test.images.clear()
    x = joined(images)
    x -= 0.5  # (value - 0.5) / 0.5, in place
    x *= 2
    train_size = sum(map(len, train.labels))
    return Dataset("femnist", x, np.concatenate(labels), CLASSES, train_size, users=users.astype(np.int64))


def _read_part(folder: Path) -> _Part:
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise FileNotFoundError(2, "no json files", str(folder / "*.json"))
    part = _Part([], [], [])
    for path in paths:
        _read_users(path, part)
    return part


def _read_users(path: Path, part: _Part) -> None:
    """Add the users of one file to the part."""
    with reading(path, "LEAF json: users, and user_data with x (784 numbers each) and y (0 .. 61) of every user"):
        content = json.loads(read_plain(path, memory_limit()))
        for user in content["users"]:
            data = content["user_data"].pop(user)
            x, y = np.asarray(data["x"], np.float32).reshape(-1, 1, 28, 28), np.asarray(data["y"], np.int64)
            if len(x) != len(y):
                raise ValueError(f"user {user} has {len(x)} images and {len(y)} labels")
            check_labels(y, CLASSES)
            part.names.append(str(user))
            part.images.append(x)
            part.labels.append(y)


SOURCES = {
    "femnist": Source(
        "handwritten characters by writer, 28x28, 62 classes (LEAF)",
        load,
        ("femnist/train/*.json", "femnist/test/*.json"),
        (Download("femnist/femnist.zip", unpack_to="."),),
    ),
}
