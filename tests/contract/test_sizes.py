"""Files, functions and constructors stay small enough to be read at once."""

import ast
from collections.abc import Iterator
from pathlib import Path

from support import CLIENT, PACKAGE, ROOT

LINES, FUNCTION_LINES, CONSTRUCTOR_PARAMETERS = 400, 50, 7

Function = ast.FunctionDef | ast.AsyncFunctionDef


def written(*below: Path) -> list[Path]:
    return [path for root in below for path in root.rglob("*.py") if not path.stem.endswith("_pb2")]


CODE = written(PACKAGE, CLIENT)


def functions(path: Path) -> Iterator[Function]:
    return (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, Function))


def lines(function: Function) -> int:
    assert function.end_lineno is not None
    return function.end_lineno - function.lineno + 1


def parameters(function: Function) -> int:
    """Without self."""
    return len(function.args.args) + len(function.args.kwonlyargs) - 1


def test_no_file_is_longer_than_can_be_read_at_once():
    files = [*CODE, *written(ROOT / "tests", ROOT / "benchmarks")]
    assert [str(path) for path in files if len(path.read_text().splitlines()) > LINES] == []


def test_no_function_is_longer_than_a_screen():
    found = [(path.name, made.name) for path in CODE for made in functions(path)]
    long = [(path.name, made.name) for path in CODE for made in functions(path) if lines(made) > FUNCTION_LINES]
    assert len(found) > 1000
    assert long == []


def test_no_constructor_has_more_than_seven_parameters():
    constructors = [(path, made) for path in CODE for made in functions(path) if made.name == "__init__"]
    assert len(constructors) > 50
    assert [path.name for path, made in constructors if parameters(made) > CONSTRUCTOR_PARAMETERS] == []


def test_no_two_test_files_have_one_name():
    """pytest imports them by it."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted({name for name in names if names.count(name) > 1}) == []
