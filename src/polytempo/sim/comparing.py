"""The experiments of a comparison: several strategies under the same conditions."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from polytempo.core.errors import UserError
from polytempo.core.given import described
from polytempo.sim.experiment import Experiment, changed, make_experiment
from polytempo.strategies.base.strategy import Strategy, as_strategy, known_name, strategy_class
from polytempo_client.imports import unknown


@dataclass(frozen=True)
class _Compared:
    """A strategy as it was given: by name, as a class or as an instance."""

    given: str | type[Strategy] | Strategy
    name: str
    cls: type[Strategy]

    @property
    def takes(self) -> list[str]:
        """The parameters that may be set: an instance has its own."""
        return [] if isinstance(self.given, Strategy) else [field.name for field in fields(self.cls)]  # type: ignore[arg-type]


def experiments_to_compare(
    strategies: Sequence[str | type[Strategy] | Strategy],
    seeds: int,
    assigned: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> list[Experiment]:
    """One experiment per strategy and seed. A parameter ``name`` goes to every strategy that has it,
    ``strategy.name`` to that one."""
    if isinstance(strategies, str) or not isinstance(strategies, Sequence) or not strategies:
        raise UserError(
            f"strategies is {described(strategies)}. Expected a list of names, strategy classes or instances."
        )
    if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1:
        raise UserError(f"seeds is {seeds!r}. Expected a whole number of at least 1.")
    compared = list(map(_compared, strategies))
    _check_assigned(compared, assigned)
    if any(one.cls.needs_proxies for one in compared):
        settings = {"proxies": "default", **settings}  # the same samples set aside, and the same first model, for all
    base = make_experiment(strategy=compared[0].given, **settings)
    made = [
        changed(base, {"strategy": one.given, "seed": base.seed + i, "parameters": _parameters(one, assigned)})
        for one in compared
        for i in range(seeds)
    ]
    _check_twice(made)
    return made


def _compared(given: str | type[Strategy] | Strategy) -> _Compared:
    if isinstance(given, str):
        return _Compared(given, given, strategy_class(given))
    cls = type(given) if isinstance(given, Strategy) else given
    if not isinstance(cls, type) or not issubclass(cls, Strategy):
        raise UserError(
            f"strategies holds {described(given)}. Expected names, classes derived from Strategy, or instances."
        )
    name = known_name(cls) or cls.__name__
    return _Compared(given, name, as_strategy(cls, name))


def _check_assigned(compared: Sequence[_Compared], assigned: Mapping[str, Any]) -> None:
    names = [one.name for one in compared]
    for key in assigned:
        owner, _, name = key.rpartition(".")
        candidates = {n for one in compared for n in one.takes if owner in ("", one.name)}
        if owner and owner not in names:
            raise UserError(unknown("strategy in --set", owner, names))
        if name not in candidates:
            raise UserError(unknown("parameter of these strategies", name, sorted(candidates)))


def _parameters(one: _Compared, assigned: Mapping[str, Any]) -> dict[str, Any]:
    split = {key: key.rpartition(".") for key in assigned}
    return {
        name: assigned[key] for key, (owner, _, name) in split.items() if owner in ("", one.name) and name in one.takes
    }


def _check_twice(made: Sequence[Experiment]) -> None:
    seen = set()
    for experiment in made:
        identity = _identity(experiment)
        if identity in seen:
            raise UserError(
                f"{experiment.strategy} is named twice. Name each strategy once; to compare two of its settings, "
                "make a sweep."
            )
        seen.add(identity)


def _identity(experiment: Experiment) -> str:
    """The same for a strategy that is named twice."""
    own = experiment.objects().get("strategy")
    code = "" if own is None else own.facts["digest"]
    return json.dumps([experiment.strategy, code, experiment.seed, experiment.parameters], default=str)
