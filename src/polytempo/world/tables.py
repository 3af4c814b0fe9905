"""Tables of TOML files as checked models, and the choice of clients that several tables share."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from polytempo.core.errors import UserError
from polytempo.core.validation import refusal
from polytempo_client.disk.reading import read_plain

TOML_BYTES = 16 << 20
"""Most bytes of a TOML file."""

Who = Literal["all"] | float | tuple[int, ...]
"""Which clients: all, a share of them chosen at random, or their numbers."""


class FileTable(BaseModel):
    """A table of a file: unknown keys are errors, numbers are finite, values never change."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


T = TypeVar("T", bound=FileTable)


def checked(kind: type[T], table: Mapping[str, Any], where: str) -> T:
    """The table as a model. The error names the key and what is wrong with it, and for an unknown one the keys there
    are."""
    try:
        return kind.model_validate(dict(table))
    except ValidationError as error:
        raise refusal(error, where, kind=kind) from None


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return parse_toml(read_plain(path, TOML_BYTES), str(path))
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}. Give the path of an existing TOML file.") from None


def parse_toml(content: bytes, title: str) -> dict[str, Any]:
    """What a TOML file holds, which messages call by this title."""
    if len(content) > TOML_BYTES:
        raise UserError(f"{title} has {len(content):,} bytes. Expected at most {TOML_BYTES:,}.")
    try:
        return tomllib.loads(content.decode())
    except RecursionError:
        raise UserError(f"{title} is no valid TOML: it is nested too deeply.") from None
    except ValueError as error:
        raise UserError(f"{title} is no valid TOML: {error}.") from None


def chosen(who: Who, clients: int, rng: np.random.Generator, where: str) -> np.ndarray:
    """A mask over the clients. A share picks exactly that share, rounded, and at least one client."""
    mask = np.zeros(clients, bool)
    if who == "all":
        mask[:] = True
    elif isinstance(who, tuple):
        wrong = [client for client in who if not 0 <= client < clients]
        if wrong:
            raise UserError(f"{where}: there is no client {wrong[0]}. Clients are numbered 0 to {clients - 1}.")
        mask[list(who)] = True
    else:
        share = float(who)
        if not 0 < share <= 1:
            raise UserError(
                f"{where}: a share of {share:g} of the clients. Expected more than 0, at most 1; [3] names client 3."
            )
        mask[rng.permutation(clients)[: max(1, round(share * clients))]] = True
    return mask


def apportioned(total: int, shares: np.ndarray) -> np.ndarray:
    """Whole numbers in proportion to the shares that sum to the total (largest remainders, ties to the first)."""
    exact = total * shares / shares.sum()
    counts: np.ndarray = np.floor(exact + 1e-9).astype(np.int64)
    rest = np.argsort(counts - exact, kind="stable")[: total - counts.sum()]
    counts[rest] += 1
    return counts
