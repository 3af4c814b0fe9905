"""Code of the user's own, by its import path. An unknown name is answered with the nearest one."""

import difflib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from polytempo_client.errors import UserError

OWN_FILES = "polytempo_file_"
"""How the names of modules begin that are loaded from a file of the user's."""


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


def imported_file(path: str) -> Path | None:
    """The file of ``some/file.py:name``; None for other words."""
    where = path.rpartition(":")[0]
    return Path(where) if where.endswith(".py") else None


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
