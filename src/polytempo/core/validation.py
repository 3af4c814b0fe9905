"""Settings from keyword arguments, and what pydantic says about bad ones in the words of a UserError."""

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ValidationError

from polytempo.core.errors import UserError
from polytempo.core.registry import unknown

M = TypeVar("M", bound=BaseModel)

OR_NONE = BeforeValidator(lambda given: None if given == "none" else given)
"""Of a number that may be None: the word ``none`` says so, where files and command lines have no None."""


def validated(model: type[M], given: Mapping[str, Any], where: str) -> M:
    """A model of these fields; a wrong name or value is an error in plain words."""
    for name in given:
        if name not in model.model_fields:
            raise UserError(unknown("setting", name, model.model_fields))
    try:
        return model(**given)
    except ValidationError as error:
        raise refusal(error, where) from None


def refusal(error: ValidationError, where: str, hint: str = "") -> UserError:
    """The first complaint as an error to raise: where it is, which key, what is wrong with it, what was given."""
    first = error.errors()[0]
    key = ".".join(map(str, first["loc"]))
    if first["type"] == "literal_error":
        return UserError(unknown(key, str(first["input"]), re.findall(r"'([^']+)'", first["ctx"]["expected"])))
    problem = first["msg"].removeprefix("Value error, ")
    got = f"; got {first['input']!r}" if key and first["type"] != "missing" else ""
    return UserError(": ".join([where, *([key] if key else []), problem]) + f"{got}.{hint}")
