"""Options made from the fields of a settings class, such as Experiment for ``run`` and ``compare``."""

import functools
import inspect
import json
import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from pydantic import BaseModel

from polytempo.core.errors import UserError
from polytempo.core.registry import warn_of_unused
from polytempo.core.validation import OR_NONE
from polytempo.sim.experiment import Experiment, make_experiment, read_experiment

GIVEN_OTHERWISE = ("strategy", "parameters", "drift")
"""Fields that most commands take in another form: as an argument, as --set, in a file."""

Jobs = Annotated[int, typer.Option(min=1, help="runs that go on at once, in processes or as tasks of a Ray cluster")]
Json = Annotated[bool, typer.Option("--json", help="print the figures as one JSON object, the last line of stdout")]
Csv = Annotated[bool, typer.Option("--csv", help="print the table as CSV on stdout")]
Quiet = Annotated[bool, typer.Option("--quiet", help="print no progress and no table")]
AllowImport = Annotated[
    list[str],
    typer.Option(
        "--allow-import",
        metavar="FILE.py:NAME",
        help="import path that the file you give names: its code runs with your rights; may be repeated",
    ),
]
LeaveOut = Annotated[
    list[str],
    typer.Option(
        metavar="EVENT[-LAST]",
        help="Go on without this faulty event of the journal, and what depends on it up to LAST (may be repeated).",
    ),
]
AcceptVersion = Annotated[
    bool, typer.Option("--accept-version", help="Replay with this version of the code what another one wrote.")
]
LoseTail = Annotated[bool, typer.Option("--lose-tail", help="Go on although events that cannot be replayed are lost.")]
Callbacks = Annotated[
    list[str],
    typer.Option("--callback", metavar="FILE.py:NAME", help="your own callback; may be repeated"),
]
Track = Annotated[list[str], typer.Option(help="log to tensorboard, mlflow or wandb; may be repeated")]
Set = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="a parameter of the strategy")]


def with_options(
    settings_class: type[BaseModel], but: Collection[str] = GIVEN_OTHERWISE
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command every field of a settings class, but for some, as an option. The command gets those that were used
    as a dict ``settings``."""
    names = [name for name in settings_class.model_fields if name not in but]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_option(settings_class, name))
        for name in names
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def wrapped(**given: Any) -> None:
            settings = {name: given.pop(name) for name in names}
            command(**given, settings={name: value for name, value in settings.items() if value is not None})

        own = inspect.signature(command).parameters
        kept = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for name, p in own.items() if name != "settings"]
        wrapped.__signature__ = inspect.Signature([*kept, *shared])  # type: ignore[attr-defined]
        wrapped.__annotations__ = {p.name: p.annotation for p in [*kept, *shared]}
        return wrapped

    return decorate


def _option(settings_class: type[BaseModel], name: str) -> Any:
    field = settings_class.model_fields[name]
    types = set(get_args(field.annotation)) or {field.annotation}
    kind = next((t for t in (str, Path, float, int) if t in types), str)
    text = field.description or ""
    or_none = OR_NONE in field.metadata
    option = "--" + name.replace("_", "-")
    if bool in types:  # turned on by its name; turned off by no-NAME where it is open without
        either = option if types == {bool} else f"{option}/--no-{option.removeprefix('--')}"
        return Annotated[bool | None, typer.Option(either, help=text, show_default=False)]
    if field.default not in (None, (), "") or or_none:
        text += f" (default {'none' if field.default is None else field.default})"  # brackets would be markup
    if or_none or {str, float} <= types:
        meta = f"NUMBER|{'none' if or_none else 'TEXT'}"
        parsed = typer.Option(option, help=text, show_default=False, parser=_number_or_text, metavar=meta)
        return Annotated[Any, parsed]
    return Annotated[kind | None, typer.Option(option, help=text, show_default=False)]


def _number_or_text(text: str) -> float | str:
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text


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


def experiment_named(
    word: str, assigned: list[str], settings: Mapping[str, Any], allowed: Collection[str]
) -> Experiment:
    """The experiment of a strategy's name or import path, or of a file, with the options that are given beside it."""
    parameters = parse_assignments(assigned)
    if word.endswith(".toml"):
        return read_experiment(Path(word), parameters, settings, allowed)
    warn_of_unused("the command line", (), allowed)
    return make_experiment(strategy=word, parameters=parameters, **settings)


def check_form(as_json: bool, as_csv: bool) -> None:
    """Standard output is for one of them."""
    if as_json and as_csv:
        raise UserError("--json and --csv both print to stdout. Give one of them.")
