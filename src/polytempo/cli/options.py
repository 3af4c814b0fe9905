"""The options that ``run`` and ``compare`` share, made from the fields of Experiment."""

import functools
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from polytempo.core.errors import UserError
from polytempo.sim.experiment import Experiment

NOT_OPTIONS = ("strategy", "parameters", "drift")


def with_experiment_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command every setting of an experiment as an option. The command gets those that were used as a dict
    ``settings``."""

    @functools.wraps(command)
    def wrapped(**given: Any) -> None:
        settings = {name: given.pop(name) for name in names}
        command(**given, settings={name: value for name, value in settings.items() if value is not None})

    own = inspect.signature(command).parameters
    names = [name for name in Experiment.model_fields if name not in NOT_OPTIONS]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_option(name))
        for name in names
    ]
    kept = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for name, p in own.items() if name != "settings"]
    wrapped.__signature__ = inspect.Signature([*kept, *shared])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in [*kept, *shared]}
    return wrapped


def _option(name: str) -> Any:
    field = Experiment.model_fields[name]
    types = set(get_args(field.annotation)) or {field.annotation}
    kind = next((t for t in (str, Path, float, int) if t in types), str)
    text = field.description or ""
    if field.default is not None:
        text += f" [default: {field.default}]"
    return Annotated[kind | None, typer.Option("--" + name.replace("_", "-"), help=text, show_default=False)]


def parse_assignments(pairs: list[str]) -> dict[str, Any]:
    """``key=value`` pairs of ``--set``; a value is read as JSON where it is JSON, else as text."""
    parsed = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UserError(f"--set {pair!r} is not understood. Expected key=value, for example --set mixing=0.3.")
        owner, dot, name = key.rpartition(".")
        plain = owner + dot + name.replace("-", "_")
        try:
            parsed[plain] = json.loads(value)
        except json.JSONDecodeError:
            parsed[plain] = value
    return parsed
