"""What all drawings of a matrix over clients share."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from polytempo.report.facts.lineage import NO_GROUP

PIXELS = 256  # of a heat map's side: a larger matrix is shown in means over squares
UNKNOWN = "#c8cdd4"


def square_size(clients: int) -> int:
    """The side of the squares over which a matrix of so many clients is averaged; 1: it is shown as it is."""
    return -(-clients // PIXELS)


def coarse(matrix: np.ndarray) -> np.ndarray:
    """The matrix itself, or the means over squares of what is known, so that a side has at most PIXELS."""
    size = square_size(len(matrix))
    if size == 1:
        return matrix
    starts = np.arange(0, len(matrix), size)
    known = ~np.isnan(matrix)

    def summed(values: np.ndarray) -> np.ndarray:
        over_rows: np.ndarray = np.add.reduceat(values, starts, axis=0)
        return np.add.reduceat(over_rows, starts, axis=1)

    total, count = summed(np.where(known, matrix, 0.0)), summed(known.astype(float))
    return np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)


def groups_beside(axes: Axes, groups: np.ndarray, colours: dict[int, str]) -> None:
    """A strip in the colours of the true groups along two sides of an ordered matrix."""
    if groups[0] == NO_GROUP:
        return
    clients = len(groups)
    thick, away = 0.02 * clients, 0.01 * clients
    starts = np.flatnonzero(np.diff(groups, prepend=groups[0] - 1))
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), clients], strict=True):
        shade = colours[int(groups[start])]
        for corner, width, height in (
            ((-away - thick, start), thick, end - start),
            ((start, clients + away), end - start, thick),
        ):
            axes.add_patch(Rectangle(corner, width, height, color=shade, linewidth=0, clip_on=False))
