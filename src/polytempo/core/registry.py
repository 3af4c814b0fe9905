"""Names for things: strategies, data sets, models, questions."""

import importlib.util
import shlex
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

from polytempo.core.errors import UserError
from polytempo_client.imports import imported_file, unknown

T = TypeVar("T")


class Registry(Generic[T]):
    """A table from plain names to things of one kind."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._things: dict[str, T] = {}

    def add(self, name: str, thing: T) -> T:
        if name in self._things and _origin(self._things[name]) != _origin(thing):
            raise ValueError(f"{self.kind} {name!r} is registered twice")
        self._things[name] = thing
        return thing

    @contextmanager
    def lent(self, name: str, thing: T) -> Iterator[None]:
        """Know a thing by this name for a while."""
        self._things[name] = thing
        try:
            yield
        finally:
            del self._things[name]

    def __getitem__(self, name: str) -> T:
        if name not in self._things:
            raise UserError(unknown(self.kind, name, self._things))
        return self._things[name]

    def __contains__(self, name: str) -> bool:
        return name in self._things

    def __iter__(self) -> Iterator[str]:
        return iter(self._things)

    def items(self) -> Iterable[tuple[str, T]]:
        return self._things.items()


def _origin(thing: object) -> tuple[str, str]:
    """Where a class or function was written: a file that is loaded again replaces what it registered."""
    return getattr(thing, "__module__", ""), getattr(thing, "__qualname__", repr(thing))


def check_imports(source: str, named: Mapping[str, str], allowed: Collection[str]) -> None:
    """Refuse import paths, by the setting that names them, which only ``source`` names and the user has not allowed:
    whoever wrote it could run any code otherwise. Two paths that lead to the same file are the same."""
    known = set(map(_resolved, allowed))
    refused = {setting: path for setting, path in named.items() if _resolved(path) not in known}
    if refused:
        shown = ", ".join(f"{setting} {path!r}" for setting, path in refused.items())
        repeated = " ".join(f"--allow-import {quoted(path)}" for path in dict.fromkeys(refused.values()))
        files = any(imported_file(path) is not None for path in refused.values())
        hint = " (a file is looked for from the working directory)" if files else ""
        raise UserError(
            f"{source} names code that is not Polytempo's: {shown}. To read it would run that code with your rights. "
            f"If you trust it, repeat it on the command line{hint}: {repeated}"
        )
    warn_of_unused(source, named.values(), allowed)


def warn_of_unused(source: str, named: Collection[str], allowed: Collection[str]) -> None:
    """Point out import paths that the user allows and that nothing names: perhaps one is misspelt."""
    unused = [path for path in allowed if not names_code(path, named)]
    if unused:
        warnings.warn(f"--allow-import {' '.join(unused)} has no effect: {source} does not name it.", stacklevel=3)


def names_code(path: str, named: Collection[str]) -> bool:
    """Do these import paths lead to the same as this one?"""
    return _resolved(path) in map(_resolved, named)


def _resolved(path: str) -> str:
    """An import path with its file as the system knows it."""
    file = imported_file(path)
    try:
        return path if file is None else f"{file.resolve()}:{path.rpartition(':')[2]}"
    except (OSError, ValueError, RuntimeError):  # a loop of links, or a name that no file can have
        return path


def quoted(word: str) -> str:
    """For a shell to take as one word, whatever a stranger has written there."""
    return shlex.quote(word if word.isprintable() else word.encode("unicode_escape").decode())


def source_file(path: str) -> Path | None:
    """The file that the code behind an import path is read from; None for plain names and modules without a file."""
    where = path.rpartition(":")[0]
    if not where or where.endswith(".py"):
        return imported_file(path)
    if where in sys.modules:
        file = getattr(sys.modules[where], "__file__", None)
    else:
        spec = importlib.util.find_spec(where)
        file = spec.origin if spec is not None and spec.has_location else None
    return None if file is None else Path(file)
