"""A search through larger spaces, by optuna's tree-structured Parzen estimator (Watanabe 2023). It asks for trials
one by one, from the scores so far."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from polytempo.core.errors import UserError
from polytempo.sweeps.space import Assigned, Range, value_text


def searched(
    grid: Mapping[str, Sequence[Any]],
    ranges: Mapping[str, Range],
    trials: int,
    seed: int,
    score: Callable[[Assigned, int], float],
) -> None:
    """Ask for so many trials and tell their scores, the higher the better, NaN for one that failed. The same seed
    and scores give the same trials."""
    optuna = _optuna()
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    for number in range(trials):
        trial = study.ask()
        assigned = {name: _chosen(trial, name, values) for name, values in grid.items()}
        assigned |= {name: _drawn(trial, name, of) for name, of in ranges.items()}
        value = score(assigned, number)
        if math.isnan(value):
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, value)


def _chosen(trial: Any, name: str, values: Sequence[Any]) -> Any:
    """By its text: optuna takes plain values only, and a setting may be a list."""
    by_text = {value_text(value): value for value in values}
    return by_text[trial.suggest_categorical(name, list(by_text))]


def _drawn(trial: Any, name: str, of: Range) -> float:
    """To three digits that count, as a person would write it."""
    if of.whole:
        return int(trial.suggest_int(name, of.low, of.high, log=of.log))
    drawn = float(f"{trial.suggest_float(name, of.low, of.high, log=of.log):.3g}")
    return min(max(drawn, of.low), of.high)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise UserError("A search needs optuna. Install it: pip install 'polytempo[optuna]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
