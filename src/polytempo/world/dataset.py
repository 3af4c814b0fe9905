"""A data set in memory: every sample once, the train part first, then the test part."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from polytempo.core.errors import UserError

Labels = Literal["classes", "numbers", "several"]
"""What labels are: one class per sample, numbers, or several labels at once, each 0 or 1."""


@dataclass(frozen=True)
class Dataset:
    """Samples and labels. Features are float32 (images as channels x height x width, already normalised), or int64
    tokens for text."""

    name: str
    x: np.ndarray
    y: np.ndarray
    """Labels, int64, 0 .. classes - 1; or float32 numbers, one or several per sample."""
    classes: int
    """Number of classes; of labels that are numbers, how many a sample has."""
    train_size: int
    """The first ``train_size`` rows are the set's own train part, the rest its test part."""
    users: np.ndarray | None = None
    """Who owns each row (int64), where the set says so."""
    vocabulary: int | None = None
    """Number of distinct tokens, for text."""

    def __post_init__(self) -> None:
        rows = len(self.x)
        checks = {
            "x must be float32 or int64": self.x.dtype in (np.float32, np.int64),
            f"y must be {rows} int64 labels, as many as x has rows, or float32 ones": len(self.y) == rows
            and (self.y.dtype == np.float32 or (self.has_classes and self.y.ndim == 1)),
            f"labels must be 0 .. {self.classes - 1}": rows == 0
            or not self.has_classes
            or (self.y.min() >= 0 and self.y.max() < self.classes),
            f"train_size must be 0 .. {rows}": 0 <= self.train_size <= rows,
            f"users must be {rows} int64 numbers": self.users is None
            or (self.users.dtype == np.int64 and self.users.shape == (rows,)),
        }
        broken = [rule for rule, holds in checks.items() if not holds]
        if broken:
            raise UserError(f"Data set {self.name!r}: {broken[0]}.")

    @property
    def has_classes(self) -> bool:
        """Is each sample of one class?"""
        return self.y.dtype == np.int64

    def samples_to_try(self) -> tuple[np.ndarray, np.ndarray]:
        """Two samples to try a model on, one of them with the largest class."""
        rows = np.array([0, int(self.y.argmax()) if self.has_classes else len(self) - 1])
        return self.x[rows], self.y[rows]

    def __len__(self) -> int:
        return len(self.y)
