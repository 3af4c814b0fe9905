"""Partitions that are given: by the users of the data set, or by a file of row numbers."""

from pathlib import Path

import numpy as np

from polytempo.core.disk.reading import read_npz
from polytempo.core.errors import UserError
from polytempo.world.dataset import Dataset
from polytempo.world.federation import Federation
from polytempo.world.partitions.deals import Deal, PartitionRequest

KEYS = ("train_idx", "train_off", "test_idx", "test_off")


def natural_clients(dataset: Dataset, min_samples: int = 2) -> int:
    """How many users of the data set have enough samples to be clients."""
    return len(_users(dataset, min_samples))


def natural(request: PartitionRequest, _: None) -> Deal:
    """Client i is the i-th user, by number, among those with enough samples; all its rows are its own."""
    users = _users(request.dataset, request.min_samples)
    _check_count(request.clients, len(users), f"{request.dataset.name} has {len(users)} users with enough samples")
    taken = users[: request.clients]
    assert request.dataset.users is not None
    position = np.minimum(np.searchsorted(taken, request.dataset.users), len(taken) - 1)
    return Deal(np.where(taken[position] == request.dataset.users, position, -1))


def parse_file(text: str) -> Path:
    if not text:
        raise ValueError
    return Path(text)


def file_clients(path: Path) -> int:
    return len(_arrays(path)["train_off"]) - 1


def from_file(request: PartitionRequest, path: Path) -> Federation:
    """Client i trains on ``train_idx[train_off[i]:train_off[i+1]]`` and is tested on the like of test; numbers count
    through the data set's train part and then its test part. The first ``clients`` clients of the file are taken."""
    arrays = _arrays(path)
    for part in ("train", "test"):
        _check_part(arrays, part, len(request.dataset), path)
    rows, times = np.unique(np.concatenate([arrays["train_idx"], arrays["test_idx"]]), return_counts=True)
    if (times > 1).any():
        raise UserError(f"{path} gives row {rows[times > 1][0]} out more than once. Every row may appear only once.")
    known = len(arrays["train_off"]) - 1
    if len(arrays["test_off"]) - 1 != known:
        raise UserError(f"{path} has {known} clients in train_off and {len(arrays['test_off']) - 1} in test_off.")
    _check_count(request.clients, known, f"{path} has {known}")
    train_off, test_off = arrays["train_off"][: request.clients + 1], arrays["test_off"][: request.clients + 1]
    for part, off in (("train", train_off), ("test", test_off)):
        if np.diff(off).min() == 0:
            raise UserError(f"{path} gives client {np.diff(off).argmin()} no {part} rows. Every client needs one.")
    smallest = int(np.diff(train_off + test_off).min())
    if smallest < request.min_samples:
        raise UserError(f"{path} gives a client {smallest} rows; the minimum is {request.min_samples}.")
    train_idx, test_idx = arrays["train_idx"][: train_off[-1]], arrays["test_idx"][: test_off[-1]]
    return Federation(request.dataset, train_idx, train_off, test_idx, test_off)


def _users(dataset: Dataset, min_samples: int) -> np.ndarray:
    if dataset.users is None:
        raise UserError(
            f"{dataset.name} does not say who owns its rows. Take another partition, for example dirichlet:0.1."
        )
    users, samples = np.unique(dataset.users, return_counts=True)
    return users[(samples >= min_samples) & (users >= 0)]


def _check_count(wanted: int, known: int, what: str) -> None:
    if wanted > known:
        raise UserError(f"{wanted} clients were asked for, but {what}. Take at most {known} clients.")


def _arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        arrays = read_npz(path, KEYS)
    except (OSError, ValueError) as error:
        raise UserError(f"Cannot read the partition {path}: {error}. Expected an npz with {', '.join(KEYS)}.") from None
    missing = [key for key in KEYS if key not in arrays]
    if missing:
        raise UserError(f"{path} has no array {missing[0]!r}. Expected {', '.join(KEYS)}.")
    for key, array in arrays.items():
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise UserError(f"{path}: {key} is {array.dtype} of shape {array.shape}. Expected a list of whole numbers.")
    return {key: array.astype(np.int64) for key, array in arrays.items()}


def _check_part(arrays: dict[str, np.ndarray], part: str, rows: int, path: Path) -> None:
    idx, off = arrays[f"{part}_idx"], arrays[f"{part}_off"]
    if len(off) < 2 or off[0] != 0 or (np.diff(off) < 0).any() or off[-1] != len(idx):
        raise UserError(f"{path}: {part}_off must rise from 0 to the length of {part}_idx, {len(idx)}.")
    if len(idx) and (idx.min() < 0 or idx.max() >= rows):
        wrong = idx[(idx < 0) | (idx >= rows)][0]
        raise UserError(f"{path}: {part}_idx names row {wrong}. The data set has rows 0 to {rows - 1}.")
