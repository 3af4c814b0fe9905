"""Imports go down only, and every thing has its place."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import polytempo
from support import CLIENT
from support import PACKAGE as ROOT
from support.absence import HEAVY, without

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
    "track": 5,
    "api": 6,
    "papers": 7,
    "sweeps": 7,
    "cli": 8,
}


SERVE = {
    "paths": 0,
    "logs": 0,
    "addresses": 0,
    "storage": 1,
    "state": 1,
    "journal": 3,
    "access": 4,
    "server": 5,
    "client": 5,
    "operators": 6,
    "conform": 6,
    "process": 7,
}
"""The rooms of serve/, and the modules that all of them share."""
LIGHT = {
    "errors": 0,
    "logs": 0,
    "memory": 0,
    "streams": 0,
    "work": 0,
    "imports": 1,
    "disk": 1,
    "model": 1,
    "personal": 1,
    "privacy": 1,
    "asking": 2,
    "protocol": 2,
    "session": 3,
    "keeping": 3,
    "updates": 4,
    "ask_when": 4,
    "inbox": 4,
    "client": 5,
    "leaving": 6,
    "cli": 7,
}
"""The rooms of the client's distribution."""
STRATEGIES = {"base": 0, "parts": 1, "methods": 2, "settings": 3}
"""The rooms of strategies/, and above them the settings, which put a method and robust mixing together."""
ROOMS = {"serve": SERVE, "strategies": STRATEGIES}
FILES = {"fcntl", "http", "io", "os", "pathlib", "safetensors", "shutil", "sqlite3", "subprocess", "tempfile"}
IO = FILES | {
    "asyncio",
    "datetime",
    "grpc",
    "logging",
    "queue",
    "random",
    "secrets",
    "socket",
    "ssl",
    "threading",
    "time",
}


def imported(path: Path) -> set[str]:
    """Modules that a file imports, at the top or anywhere else; of packages, what is taken from them too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def imported_layers(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imported(path) if name.startswith("polytempo.")} & LEVEL.keys()


@pytest.mark.parametrize(
    "path", [p for p in ROOT.rglob("*.py") if not p.stem.startswith("__")], ids=lambda p: str(p.relative_to(ROOT))
)
def test_imports_go_down_only(path):
    layer = path.relative_to(ROOT).parts[0].removesuffix(".py")
    for other in imported_layers(path):
        assert other == layer or LEVEL[other] < LEVEL[layer], f"{layer} imports {other}"


def test_every_purpose_of_a_random_stream_belongs_to_one_module():
    users: dict[str, set[str]] = {}
    for path in [*ROOT.rglob("*.py"), *CLIENT.rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "stream":
                purpose = ast.literal_eval(node.args[1])
                users.setdefault(purpose, set()).add(str(path))
    assert len(users) > 10
    assert {purpose: modules for purpose, modules in users.items() if len(modules) > 1} == {}


@pytest.mark.parametrize(
    "path", [p for layer in ROOMS for p in sorted((ROOT / layer).rglob("*.py"))], ids=lambda p: str(p.relative_to(ROOT))
)
def test_imports_between_rooms_go_down_only(path):
    layer, *rest = path.relative_to(ROOT).parts
    if rest == ["__init__.py"]:
        return
    room, rooms = rest[0].removesuffix(".py"), ROOMS[layer]
    names = [name.split(".") for name in imported(path) if name.startswith(f"polytempo.{layer}.")]
    for other in {parts[2] for parts in names}:
        assert other == room or rooms.get(other, len(rooms)) < rooms[room], f"{room} imports {other}"


@pytest.mark.parametrize(
    "path", [p for p in CLIENT.rglob("*.py") if p.parent != CLIENT or not p.stem.startswith("__")], ids=str
)
def test_the_clients_distribution_imports_down_only_and_nothing_of_polytempo(path):
    names = imported(path)
    assert not [name for name in names if name.partition(".")[0] == "polytempo"]
    room = path.relative_to(CLIENT).parts[0].removesuffix(".py")
    for other in {name.split(".")[1] for name in names if name.startswith("polytempo_client.")}:
        assert other == room or LIGHT[other] < LIGHT[room], f"{room} imports {other}"


@pytest.mark.parametrize("layer", ROOMS)
def test_every_file_has_a_room(layer):
    found = {path.name.removesuffix(".py") for path in (ROOT / layer).iterdir() if not path.name.startswith("__")}
    assert found == set(ROOMS[layer])


@pytest.mark.parametrize("pure", ["strategies", "serve/state"])
def test_strategies_and_the_state_of_a_service_do_no_io(pure):
    for path in (ROOT / pure).rglob("*.py"):
        assert not IO & {name.split(".")[0] for name in imported(path)}, path


def test_the_state_of_a_service_is_made_of_strategies_only():
    for path in (ROOT / "serve" / "state").rglob("*.py"):
        assert imported_layers(path) <= {"core", "strategies", "serve"}, path


def test_the_command_line_and_a_service_start_without_what_only_reports_and_data_sets_need():
    loaded = "import sys, polytempo.cli.main, polytempo.serve.process.running; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout.split()
    assert "torch" in modules
    assert {"sklearn", "matplotlib", "scipy.special", "scipy.stats", "scipy.ndimage"}.isdisjoint(modules)


def modules_of_the_client() -> list[str]:
    """All of them, but for what is generated, and the module that runs the command."""
    files = [path.relative_to(CLIENT.parent).with_suffix("") for path in CLIENT.rglob("*.py")]
    return sorted(".".join(file.parts).removesuffix(".__init__") for file in files if file.stem != "__main__")


def loaded_without(absent: set[str], modules: list[str]) -> set[str]:
    """The packages that are loaded after these imports, where some are not to be had."""
    script = f"{without(absent)}\nimport {', '.join(modules)}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {module.partition(".")[0] for module in done.stdout.split()}


def test_the_clients_distribution_imports_numpy_and_grpc_only():
    loaded = loaded_without(HEAVY, ["polytempo", *modules_of_the_client()])
    assert {"numpy", "grpc", "google"} <= loaded
    assert HEAVY.isdisjoint(loaded)


def test_everything_that_starts_can_be_imported_where_there_is_no_fcntl():
    starts = ["polytempo.cli.main", "polytempo_client.client", "polytempo.serve.process.running"]
    assert "fcntl" not in loaded_without({"fcntl"}, ["polytempo", "polytempo.api", *starts])


def test_the_names_of_the_package_are_where_it_says():
    assert all(getattr(polytempo, name).__name__ == name for name in polytempo.__all__)
    assert set(polytempo.__all__) <= set(dir(polytempo))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = polytempo.nothing
