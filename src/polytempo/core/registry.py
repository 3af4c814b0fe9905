"""Names for things: strategies, data sets, models, questions. An unknown name is answered with the nearest one."""

import difflib
import importlib
import importlib.util
import os
import shlex
import sys
import traceback
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from polytempo.core.errors import UserError

T = TypeVar("T")
OWN_FILES = "polytempo_file_"
"""How the names of modules begin that are loaded from a file of the user's."""


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


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """The message for a name that is not in the table: the nearest right one, and all of them if they are few."""
    names = list(known)
    near = _nearest(name, names)
    hint = "" if near is None else f" Did you mean {near!r}?"
    if name.endswith(".py"):
        hint = f" Name what to take from the file: {name}:NAME."
    return f"Unknown {kind} {name!r}.{hint} Known: {', '.join(names) or 'none'}."


def _nearest(name: str, names: Iterable[str]) -> str | None:
    """The name that somebody may have meant. One of another length is none, whatever letters they share."""
    alike = [other for other in names if 2 * abs(len(other) - len(name)) < max(len(other), len(name))]
    found = difflib.get_close_matches(name, alike, n=1, cutoff=0.5 if len(name) <= 3 else 0.6)
    return found[0] if found else None


def from_import_path(path: str, kind: str) -> Any:
    """The object behind ``package.module:name`` or ``some/file.py:name``. The file is looked for from the working
    directory. A module may lie there too; nothing else is searched for in it."""
    where, _, name = path.rpartition(":")
    if not where:
        raise UserError(f"{kind} {path!r} is no import path. Expected package.module:name or file.py:name.")
    file = imported_file(path)
    if file is not None and not file.exists():
        raise UserError(
            f"{kind} {path!r} cannot be imported: there is no {file} in {Path.cwd()}, the working directory."
        )
    try:
        module = _import(where) if file is None else _load(file)
    except ModuleNotFoundError as error:
        raise UserError(f"{kind} {path!r} cannot be imported: {error}. Is it on PYTHONPATH?") from error
    except (Exception, SystemExit) as error:  # a user's file may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{kind} {path!r} cannot be imported: {reason}{_line_of(error, file)}.") from error
    if not hasattr(module, name):
        raise UserError(unknown(f"name in {where}", name, [n for n in vars(module) if not n.startswith("_")]))
    return getattr(module, name)


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


def imported_file(path: str) -> Path | None:
    """The file of ``some/file.py:name``; None for other words."""
    where = path.rpartition(":")[0]
    return Path(where) if where.endswith(".py") else None


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


def _import(where: str) -> ModuleType:
    """A module by its dotted name: of the working directory, if that has it."""
    here = os.getcwd()
    if PathFinder.find_spec(where.partition(".")[0], [here]) is None:
        return importlib.import_module(where)
    with _neighbours(here):
        return importlib.import_module(where)


def _load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(OWN_FILES + file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pydantic look a class's module up
    with _neighbours(str(file.resolve().parent)):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _neighbours(directory: str) -> Iterator[None]:
    """While the user's code is imported, what lies beside it is found first, as when Python runs the file itself.
    Afterwards it is found last: code that imports its neighbours later still works, and none of them takes the place
    of a module that is installed."""
    sys.path.insert(0, directory)
    try:
        yield
    finally:
        sys.path.remove(directory)
        if directory not in sys.path:
            sys.path.append(directory)


def _line_of(error: BaseException, file: Path | None) -> str:
    """The last line of the file that was running; a SyntaxError's own text has its line."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if file and frame.filename == os.path.abspath(file)]
    return f" (line {lines[-1]})" if lines else ""
