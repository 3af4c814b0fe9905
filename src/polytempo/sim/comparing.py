"""The experiments of a comparison: several strategies under the same conditions."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from polytempo.core.errors import UserError
from polytempo.sim.experiment import Experiment, make_experiment
from polytempo.strategies.base.strategy import strategy_class
from polytempo_client.imports import unknown


def experiments_to_compare(
    strategies: Sequence[str], seeds: int, assigned: Mapping[str, Any], settings: Mapping[str, Any]
) -> list[Experiment]:
    """One experiment per strategy and seed. A parameter ``name`` goes to every strategy that has it,
    ``strategy.name`` to that one."""
    for strategy in strategies:
        if strategies.count(strategy) > 1:
            raise UserError(
                f"{strategy} is named twice. Name each strategy once; to compare two of its settings, make a sweep."
            )
    known = {strategy: [f.name for f in fields(strategy_class(strategy))] for strategy in strategies}  # type: ignore[arg-type]
    for key in assigned:
        owner, _, name = key.rpartition(".")
        candidates = {n for strategy in strategies for n in known[strategy] if owner in ("", strategy)}
        if owner and owner not in strategies:
            raise UserError(unknown("strategy in --set", owner, strategies))
        if name not in candidates:
            raise UserError(unknown("parameter of these strategies", name, sorted(candidates)))
    if any(strategy_class(strategy).needs_proxies for strategy in strategies):
        settings = {"proxies": "default", **settings}  # the same samples set aside, and the same first model, for all
    first = int(settings.get("seed", 0))
    return [
        make_experiment(
            **{
                **settings,
                "strategy": strategy,
                "seed": first + i,
                "parameters": {
                    key.rpartition(".")[2]: value
                    for key, value in assigned.items()
                    if key.rpartition(".")[0] in ("", strategy) and key.rpartition(".")[2] in known[strategy]
                },
            }
        )
        for strategy in strategies
        for i in range(seeds)
    ]
