"""Imports go down only, and every thing has its place."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import polytempo

ROOT = Path(polytempo.__file__).parent
LEVEL = {
    "core": 0,
    "world": 1,
    "learn": 1,
    "strategies": 2,
    "methods": 3,
    "sim": 3,
    "serve": 3,
    "testing": 4,
    "report": 4,
    "api": 5,
    "papers": 6,
    "cli": 7,
}


def imported_layers(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        found |= {name.split(".")[1] for name in names if name.startswith("polytempo.")}
    return found


@pytest.mark.parametrize(
    "path", [p for p in ROOT.rglob("*.py") if not p.stem.startswith("__")], ids=lambda p: str(p.relative_to(ROOT))
)
def test_imports_go_down_only(path):
    layer = path.relative_to(ROOT).parts[0].removesuffix(".py")
    for other in imported_layers(path):
        assert other == layer or LEVEL[other] < LEVEL[layer], f"{layer} imports {other}"


def test_every_purpose_of_a_random_stream_belongs_to_one_module():
    users: dict[str, set[str]] = {}
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "stream":
                purpose = ast.literal_eval(node.args[1])
                users.setdefault(purpose, set()).add(str(path.relative_to(ROOT)))
    assert len(users) > 10
    assert {purpose: modules for purpose, modules in users.items() if len(modules) > 1} == {}


def test_strategies_do_no_io():
    forbidden = {"time", "socket", "random", "os", "threading", "asyncio", "pathlib", "datetime"}
    for path in (ROOT / "strategies").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not forbidden & {alias.name.split(".")[0] for alias in node.names}, path
            if isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] not in forbidden, path


def test_the_command_line_and_a_service_start_without_what_only_reports_and_data_sets_need():
    loaded = "import sys, polytempo.cli.main, polytempo.serve.process.running; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout.split()
    assert "torch" in modules
    assert {"sklearn", "matplotlib", "scipy.special", "scipy.stats", "scipy.ndimage"}.isdisjoint(modules)
