"""The colours of true groups and of clusters."""

import matplotlib as mpl
import numpy as np
from matplotlib.colors import to_hex, to_rgb

from polytempo.report.facts.lineage import NO_GROUP
from polytempo.report.run import Run

# Paul Tol's muted colours, safe for the colour-blind and none of them a method's.
GROUP_COLOURS = ("#44aa99", "#cc6677", "#ddcc77", "#88ccee", "#aa4499", "#999933", "#882255", "#117733", "#332288")


def group_colours(run: Run, otherwise: str) -> dict[int, str]:
    """A colour for every true group that a client ever had; one for everybody where none are known."""
    known = [run.per_client("per_client_group", i) for i in range(len(run.evaluations))]
    groups = np.unique(np.concatenate([*known, []])).astype(int).tolist()
    return {NO_GROUP: otherwise, **dict(zip(groups, distinct_colours(len(groups)), strict=True))}


def distinct_colours(count: int) -> list[str]:
    """So many colours that can be told apart as well as so many can."""
    if count <= len(GROUP_COLOURS):
        return list(GROUP_COLOURS[:count])
    return [to_hex(colour) for colour in mpl.colormaps["turbo"](np.linspace(0.05, 0.95, count))]


def ink_on(colour: str) -> str:
    """Dark or white, whichever reads better on a colour."""
    red, green, blue = to_rgb(colour)
    return "#1b1f24" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.55 else "white"
