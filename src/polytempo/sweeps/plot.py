"""The figure of a sweep: a heat map of a grid, or the trials of a search over each name."""

import math

import numpy as np
from matplotlib.figure import Figure

from polytempo.report.drawing.canvas import INK, TEXT, NotebookFigure, name_axes, plain, styled
from polytempo.report.drawing.heat_map import heat_map
from polytempo.sweeps.result import Sweep, Trial
from polytempo.sweeps.space import shown_name, value_text

TRIED, CHOSEN = "#0072b2", "#d55e00"
PANEL = 3.2  # inches


def sweep_figure(sweep: Sweep) -> Figure:
    """The mean score on validation rows, shares in percent; without these rows, on test rows. The chosen trial
    stands out."""
    texts = {name: list(dict.fromkeys(_text(one, name) for one in sweep.trials)) for name in sweep.names}
    if math.prod(map(len, texts.values())) == len(sweep.trials):
        return _grid(sweep, texts)
    return _search(sweep)


def _grid(sweep: Sweep, texts: dict[str, list[str]]) -> Figure:
    """Over the first two names with several values; of trials that differ in others, the best."""
    varied = [name for name in sweep.names if len(texts[name]) > 1] or list(sweep.names)
    across = varied[1] if len(varied) > 1 else varied[0]
    down = varied[0] if len(varied) > 1 else None
    rows = texts[down] if down is not None else [""]
    values = np.full((len(rows), len(texts[across])), np.nan)
    best, scale = sweep.best, sweep.scale
    better = np.fmax if scale.higher_is_better else np.fmin
    chosen = None
    for one in sweep.trials:
        at = (rows.index(_text(one, down)) if down is not None else 0, texts[across].index(_text(one, across)))
        values[at] = better(values[at], scale.factor * _score(sweep, one))
        chosen = at if one is best else chosen
    others = f", best over {', '.join(map(shown_name, varied[2:]))}" if len(varied) > 2 else ""
    title = f"{sweep.strategy}: {_measure(sweep)}{others}"
    row_name = shown_name(down) if down is not None else ""
    return heat_map(values, (row_name, rows), (shown_name(across), texts[across]), chosen, title, scale)


def _search(sweep: Sweep) -> Figure:
    """One panel per name, one dot per trial."""
    columns = min(len(sweep.names), 3)
    rows = -(-len(sweep.names) // columns)
    figure = NotebookFigure(figsize=(PANEL * columns, 0.4 + 2.6 * rows), layout="constrained")
    for number, name in enumerate(sweep.names, 1):
        axes = styled(figure.add_subplot(rows, columns, number))
        values = [one.assigned[name] for one in sweep.trials]
        if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            shown = values
            if min(values) > 0 and max(values) / min(values) > 30:
                axes.set_xscale("log")
        else:
            shown = [plain(value_text(value), 16) for value in values]
        for value, one in zip(shown, sweep.trials, strict=True):
            colour, order = (CHOSEN, 3) if one is sweep.best else (TRIED, 2)
            axes.plot(value, sweep.scale.factor * _score(sweep, one), "o", color=colour, zorder=order)
        name_axes(axes, shown_name(name), _measure(sweep) if number % columns == 1 or columns == 1 else "")
    figure.suptitle(plain(f"Search of {sweep.strategy}", 80), fontsize=TEXT, color=INK, x=0.01, ha="left")
    return figure


def _score(sweep: Sweep, trial: Trial) -> float:
    return trial.test.mean if sweep.best is None else trial.validation.mean


def _measure(sweep: Sweep) -> str:
    return f"{'test' if sweep.best is None else 'validation'} {sweep.scale.axis}"


def _text(trial: Trial, name: str) -> str:
    return value_text(trial.assigned[name])
