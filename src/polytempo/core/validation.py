"""Settings from keyword arguments, and what pydantic says about bad ones in the words of a UserError."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ValidationError
from pydantic_core import ErrorDetails

from polytempo.core.errors import UserError
from polytempo.core.given import described
from polytempo_client.imports import unknown

M = TypeVar("M", bound=BaseModel)

OR_NONE = BeforeValidator(lambda given: None if given == "none" else given)
"""Of a number that may be None: the word ``none`` says so, where files and command lines have no None."""

LAYERS = BeforeValidator(
    lambda given: tuple(part.strip() for part in given.split(",") if part.strip()) if isinstance(given, str) else given
)
"""Of the names of layers: a command line has them in one word, with commas between."""


def validated(model: type[M], given: Mapping[str, Any], where: str) -> M:
    """A model of these fields; a wrong name or value is an error in plain words."""
    for name in given:
        if name not in model.model_fields:
            raise UserError(unknown("setting", name, model.model_fields))
    try:
        return model(**given)
    except ValidationError as error:
        raise refusal(error, where, kind=model) from None


def refusal(error: ValidationError, where: str, hint: str = "", kind: type[BaseModel] | None = None) -> UserError:
    """The first complaint as an error to raise: where it is, which key, what is wrong with it, what was given. ``kind``
    is the model that was checked, for the names that there are."""
    first = _worst(error)
    key = ".".join(map(str, first["loc"]))
    if first["type"] == "literal_error":
        known = re.findall(r"'([^']+)'", first["ctx"]["expected"])
        return UserError(f"{where}: {unknown(key, str(first['input']), known)}")
    table = None if kind is None or first["type"] != "extra_forbidden" else _table_at(kind, first["loc"][:-1])
    if table is not None:
        return UserError(f"{where}: {_unknown_key(table, first['loc'])}{hint}")
    got = f"; got {_shown(first['input'])}" if key and first["type"] != "missing" else ""
    return UserError(f"{where}: {complaint(error)}{got}.{hint}")


def _shown(value: object) -> str:
    """A setting as it was written; of an array or another object type and shape only."""
    return described(value) if hasattr(value, "shape") or hasattr(value, "columns") else repr(value)


def complaint(error: ValidationError) -> str:
    """The first complaint: which key, and what is wrong with it."""
    first = _worst(error)
    key = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        return f"{key} is missing"
    problem = first["msg"].removeprefix("Value error, ")
    return f"{key}: {problem}" if key else problem


def _worst(error: ValidationError) -> ErrorDetails:
    """The first complaint, but for keys that are missing: they may be there and misspelt."""
    return min(error.errors(), key=lambda one: one["type"] == "missing")


def _unknown_key(table: type[BaseModel], at: Sequence[str | int]) -> str:
    keys = [field.alias or name for name, field in table.model_fields.items()]
    inside = f"key of {'.'.join(map(str, at[:-1]))}" if len(at) > 1 else "key"
    return unknown(inside, str(at[-1]), keys)


def _table_at(kind: type[BaseModel], at: Sequence[str | int]) -> type[BaseModel] | None:
    """The model of an inner table; None where that is not clear."""
    for part in (part for part in at if isinstance(part, str)):
        fields = {field.alias or name: field for name, field in kind.model_fields.items()}
        models = list(_models_in(fields[part].annotation)) if part in fields else []
        if len(models) != 1:
            return None
        kind = models[0]
    return kind


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)
