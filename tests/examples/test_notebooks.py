"""The cells of the notebooks run one after the other, and what they show can be shown."""

import ast
import json
import sys

import pytest

from polytempo.report.comparison import Comparison
from polytempo.report.run import Run
from polytempo.strategies import strategies
from polytempo.sweeps.result import Sweep
from support import ROOT
from support.extras import extra

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
    shown = [value for value in values if isinstance(value, Run | Comparison | Sweep)]
    assert shown
    assert all("<svg" in value._repr_html_() for value in shown)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_kernel_runs_them_and_progress_is_gone_at_the_end(path, tmp_path):
    extra("ipykernel")
    nbclient, nbformat = extra("nbclient"), extra("nbformat")
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.output_type == "stream" and output.name == "stderr"]
    progress = [output.data["text/html"] for output in outputs if output.output_type == "display_data"]
    assert progress
    assert set(progress) == {""}
    assert any("<svg" in output.data.get("text/html", "") for output in outputs if "data" in output)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_kept_without_outputs(path):
    cells = json.loads(path.read_text())["cells"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells if cell["cell_type"] == "code")
