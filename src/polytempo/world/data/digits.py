"""The embedded default: 1,797 real handwritten digits of 8 x 8 pixels that come with scikit-learn."""

from pathlib import Path

import numpy as np

from polytempo.world.data.sources import Source, normalised
from polytempo.world.dataset import Dataset


def load(data_dir: Path) -> Dataset:
    """Pixels are 0 .. 16. The set has no test part of its own; ``data_dir`` is not used."""
    from sklearn.datasets import load_digits  # here, because it takes a second to import

    digits = load_digits()
    x = normalised([digits.images[:, None]], mean=(0.3053,), std=(0.3760,), top=16)
    return Dataset("digits", x, digits.target.astype(np.int64), classes=10, train_size=len(x))


SOURCES = {"digits": Source("1,797 handwritten digits, 8x8, embedded: needs no files", load)}
