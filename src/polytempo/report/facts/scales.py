"""How the figures of some runs read: by the name, the direction and the range of their metric."""

import math
from collections.abc import Sequence
from typing import Any

from polytempo.core.errors import UserError
from polytempo.learn.metrics import Scale
from polytempo.report.facts.numbers import NOTHING, shown
from polytempo.report.run import Run
from polytempo.sim.result import Figure


def common_scale(runs: Sequence[Run]) -> Scale:
    """The metric of these runs: what is put side by side must be measured alike."""
    scales = list(dict.fromkeys(run.scale for run in runs))
    if len(scales) > 1:
        names = ", ".join(scale.name for scale in scales)
        raise UserError(f"The runs have different metrics ({names}). Expected one metric: report on them separately.")
    return scales[0] if scales else Scale()


def titled(figure: Figure[Any], scale: Scale) -> str:
    """The heading of a figure's column."""
    return figure.title.replace("%", scale.unit) if figure.unit == "score" else figure.title


def in_column(figure: Figure[Any], scale: Scale, value: float) -> str:
    """A value in its column, in the unit of the heading."""
    if figure.unit != "score":
        return shown(value, figure.unit)
    return NOTHING if math.isnan(value) else scale.number(value)
