"""What a sweep varies: settings and parameters by name, each with a list of values or, for a search, a range."""

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from polytempo.core.errors import UserError
from polytempo.core.given import described
from polytempo.sim.experiment import Experiment, changed
from polytempo_client.imports import unknown

PARAMETER = "parameters."
GIVEN_OTHERWISE = {
    "seed": "Say how many seeds with seeds (--seeds), and the first one with seed (--seed).",
    "strategy": "Compare strategies with polytempo compare.",
    "workers": "It changes no result.",
    "executor": "It changes no result.",
    "data_dir": "It changes no result.",
    "validation_share": "All settings are judged by the same validation rows.",
    "drift": "Write it into an experiment file.",
    "parameters": "Name the parameter itself.",
}
"""Settings that a sweep does not vary, and why not."""

Assigned = Mapping[str, Any]
"""Values by the names of settings and parameters."""


@dataclass(frozen=True)
class Range:
    """All numbers from ``low`` to ``high``, whole ones if both are whole."""

    low: float
    high: float
    log: bool = False
    """Drawn evenly in their logarithm."""

    def __post_init__(self) -> None:
        numbers = (self.low, self.high)
        if any(isinstance(n, bool) or not isinstance(n, int | float) or not math.isfinite(n) for n in numbers):
            raise UserError(f"A range goes from {self.low!r} to {self.high!r}. Expected two finite numbers.")
        if not self.low < self.high:
            raise UserError(f"A range goes from {self.low:g} to {self.high:g}. Expected a lower number first.")
        if self.log and self.low <= 0:
            raise UserError(f"A logarithmic range starts at {self.low:g}. Expected a number above 0.")

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)


def parse_grid(words: Sequence[str]) -> dict[str, list[Any]]:
    """``mixing=0.1,0.3`` becomes a name and its values, each read as JSON where it is JSON, else as text. Values that
    hold commas are written as a JSON list."""
    found: dict[str, list[Any]] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name or not text:
            raise UserError(f"--grid {word!r} is not understood. Expected NAME=VALUE,VALUE, such as mixing=0.1,0.3.")
        listed = _value(text)
        _add("--grid", found, name, listed if isinstance(listed, list) else [_value(one) for one in text.split(",")])
    return found


def parse_ranges(words: Sequence[str]) -> dict[str, Range]:
    """``lr=0.001:0.1:log`` becomes a name and its range."""
    found: dict[str, Range] = {}
    for word in words:
        name, equals, text = word.partition("=")
        low, _, rest = text.partition(":")
        high, colon, log = rest.partition(":")
        if not equals or not name or not high or (colon and log != "log"):
            raise UserError(f"--range {word!r} is not understood. Expected NAME=LOW:HIGH or NAME=LOW:HIGH:log.")
        _add("--range", found, name, Range(_value(low), _value(high), bool(colon)))
    return found


def combinations(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination of values, the last name varying fastest."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def checked_grid(base: Experiment, grid: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """The grid with names as settings have them; an unknown name, no values or one given twice are errors."""
    _check_mapping("grid", grid, "{name: [value, value]}")
    known = {_checked_name(base, name): list(_listed(name, values)) for name, values in grid.items()}
    for name, values in known.items():
        texts = [_checked_text(name, value) for value in values]
        twice = next((text for text in texts if texts.count(text) > 1), None)
        if not values or twice is not None:
            problem = "no values" if twice is None else f"{twice} twice"
            raise UserError(f"The grid of {name} has {problem}. Expected one or more different values.")
    return known


def checked_ranges(base: Experiment, ranges: Mapping[str, Any]) -> dict[str, Range]:
    """Ranges with names as settings have them. A range may be given as (low, high) or (low, high, "log")."""
    _check_mapping("ranges", ranges, '{name: (low, high)} or {name: (low, high, "log")}')
    return {_checked_name(base, name): _as_range(name, given) for name, given in ranges.items()}


def each_value(grid: Mapping[str, Sequence[Any]], ranges: Mapping[str, Range]) -> Iterator[Assigned]:
    """Each value of a list and both ends of a range, by itself."""
    for name, values in grid.items():
        yield from ({name: value} for value in values)
    for name, drawn in ranges.items():
        yield from ({name: end} for end in (drawn.low, drawn.high))


def experiment_with(base: Experiment, assigned: Assigned, seed: int) -> Experiment:
    """The experiment with these values and this seed; a bad value is an error that names it."""
    given: dict[str, Any] = {"seed": seed}
    own = dict(base.parameters)
    for name, value in assigned.items():
        if name.startswith(PARAMETER):
            own[name.removeprefix(PARAMETER)] = value
        else:
            given[name] = value
    for one, other in (("epochs", "steps"), ("steps", "epochs")):
        if one in assigned and other not in assigned:
            given[other] = None
    try:
        experiment = changed(base, given | {"parameters": own})
        experiment.check()
    except UserError as error:
        raise UserError(f"With {as_words(assigned)}: {error}") from None
    return experiment


def shown_name(name: str) -> str:
    """A name as tables show it."""
    return name.removeprefix(PARAMETER)


def value_text(value: Any) -> str:
    """A value as tables show it."""
    return value if isinstance(value, str) else json.dumps(value)


def as_words(assigned: Assigned) -> str:
    """``mixing 0.3, lr 0.01``."""
    return ", ".join(f"{shown_name(name)} {value_text(value)}" for name, value in assigned.items())


def _add(option: str, found: dict[str, Any], name: str, given: Any) -> None:
    if name in found:
        raise UserError(f"{option} names {name} twice. Give all its values at once.")
    found[name] = given


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _check_mapping(argument: str, given: object, expected: str) -> None:
    if not isinstance(given, Mapping):
        raise UserError(f"{argument} is {described(given)}. Expected {expected}.")


def _checked_text(name: str, value: Any) -> str:
    try:
        return value_text(value)
    except TypeError:
        raise UserError(
            f"The grid of {name} holds {described(value)}. Expected numbers, names or lists: name an object by "
            "its import path."
        ) from None


def _listed(name: str, values: Any) -> Iterator[Any]:
    if isinstance(values, str) or not hasattr(values, "__iter__"):
        raise UserError(f"The grid of {name} is {values!r}. Expected a list of values.")
    return (value.item() if hasattr(value, "item") else value for value in values)  # numbers of numpy as plain ones


def _as_range(name: str, given: Any) -> Range:
    if isinstance(given, Range):
        return given
    if not isinstance(given, tuple | list) or len(given) not in (2, 3) or list(given[2:]) not in ([], ["log"]):
        raise UserError(f'The range of {name} is {given!r}. Expected (low, high) or (low, high, "log").')
    return Range(given[0], given[1], len(given) == 3)


def _checked_name(base: Experiment, name: str) -> str:
    """A setting by its name, or a parameter of the strategy as ``parameters.NAME``. Where both exist, the plain name is
    the setting."""
    plain = name.replace("-", "_")
    own = [field.name for field in fields(base.strategy_class())]  # type: ignore[arg-type]
    if plain in GIVEN_OTHERWISE:
        raise UserError(f"A sweep does not vary {plain}. {GIVEN_OTHERWISE[plain]}")
    if plain in type(base).model_fields:
        return plain
    if plain.removeprefix(PARAMETER) in own:
        return PARAMETER + plain.removeprefix(PARAMETER)
    settings = [field for field in type(base).model_fields if field not in GIVEN_OTHERWISE]
    raise UserError(unknown(f"setting, or parameter of {base.strategy},", plain, [*own, *settings]))
