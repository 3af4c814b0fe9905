"""What pydantic says about bad input, in the words of a UserError."""

import re

from pydantic import ValidationError

from polytempo.core.errors import UserError
from polytempo.core.registry import unknown


def refusal(error: ValidationError, where: str, hint: str = "") -> UserError:
    """The first complaint as an error to raise: where it is, which key, what is wrong with it, what was given."""
    first = error.errors()[0]
    key = ".".join(map(str, first["loc"]))
    if first["type"] == "literal_error":
        return UserError(unknown(key, str(first["input"]), re.findall(r"'([^']+)'", first["ctx"]["expected"])))
    problem = first["msg"].removeprefix("Value error, ")
    got = f"; got {first['input']!r}" if key and first["type"] != "missing" else ""
    return UserError(": ".join([where, *([key] if key else []), problem]) + f"{got}.{hint}")
