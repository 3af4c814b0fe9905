"""The cells of the notebooks run one after the other, and what they show can be shown."""

import ast
import json
import sys

import pytest

from polytempo.report.run import Run
from polytempo.strategies import strategies
from support import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def code_of(path):
    cells = json.loads(path.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def executed(code, names):
    """Run a cell; the value of its last line, if that is an expression."""
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)


def test_there_are_three():
    assert [path.stem for path in NOTEBOOKS] == ["first-steps", "own-data-and-model", "own-method"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_cells_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own", raising=False)
    monkeypatch.setattr(strategies, "_things", dict(strategies._things))  # a notebook registers methods
    names = {"__name__": "notebook"}
    values = [executed(code, names) for code in code_of(path)]
    runs = [value for value in values if isinstance(value, Run)]
    assert runs
    assert all("<svg" in run._repr_html_() for run in runs)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_kept_without_outputs(path):
    cells = json.loads(path.read_text())["cells"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells if cell["cell_type"] == "code")
