"""Which of many are shown."""

import numpy as np


def evenly(size: int, most: int) -> np.ndarray:
    """Indices spread evenly over ``range(size)``, first and last among them, at most ``most``."""
    return np.unique(np.linspace(0, size - 1, min(size, most)).round().astype(int))
