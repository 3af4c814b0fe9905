"""Small files in the formats of the known data sets, for tests."""

import gzip
import json
import pickle
from pathlib import Path

import numpy as np


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


def write_cifar10(folder: Path, protocol: int = 2) -> np.ndarray:
    folder.mkdir(parents=True, exist_ok=True)
    data = np.arange(12 * 3072).reshape(12, 3072).astype(np.uint8)
    for i, file in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        rows = slice(2 * i, 2 * i + 2)
        (folder / file).write_bytes(pickle.dumps({b"data": data[rows], b"labels": [i, 9]}, protocol))
    return data.reshape(12, 3, 32, 32)


def write_leaf(path: Path, samples: dict[str, list[int]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    user_data = {
        user: {"x": [[label / 100] * 784 for label in labels], "y": labels} for user, labels in samples.items()
    }
    path.write_text(json.dumps({"users": list(samples), "num_samples": [], "user_data": user_data}))


def write_uci_har(folder: Path) -> None:
    for part, labels, subjects in (("train", [1, 6, 2], [30, 1, 30]), ("test", [5], [2])):
        (folder / part).mkdir(parents=True)
        rows = ["  ".join(f"{label / 10: .7e}" for _ in range(561)) for label in labels]
        (folder / part / f"X_{part}.txt").write_text("\n".join(rows) + "\n")
        (folder / part / f"y_{part}.txt").write_text("\n".join(map(str, labels)) + "\n")
        (folder / part / f"subject_{part}.txt").write_text("\n".join(map(str, subjects)) + "\n")


def write_harbox(root: Path) -> None:
    """Files of 100 lines per window, and 7 more of a window that was cut off."""
    for user, file, separator, windows in (("u2", "Walk", " ", 2), ("u1", "Walk", ",", 1), ("u1", "Hop", ", ", 1)):
        (root / user).mkdir(parents=True, exist_ok=True)
        lines = [separator.join(str(line % 100 * 10 + k) for k in range(10)) for line in range(100 * windows + 7)]
        (root / user / f"{file}_train.txt").write_text("\n".join(lines) + "\n")


def write_ag_news(folder: Path, file: str, rows: list[tuple[int, str, str]]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / file).write_text("".join(f'"{label}","{title}","{text}"\n' for label, title, text in rows))
