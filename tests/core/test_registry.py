"""Import paths: what a user names may lie in the working directory, and nothing else is taken from there."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from polytempo.serve.journal.opening import open_service
from polytempo.serve.journal.settings import make_settings
from polytempo_client.imports import from_import_path

PLANTED = "from pathlib import Path\nPath(__file__).with_suffix('.ran').touch()\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory. Modules that begin with ``own_`` are forgotten afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith(("own_", "polytempo_file_own_"))]:
        del sys.modules[name]


@pytest.fixture
def installed(here: Path) -> Path:
    """A directory that is on the path, with a module that somebody has planted in the working directory as well."""
    directory = here / "installed"
    directory.mkdir()
    (directory / "own_library.py").touch()
    (here / "own_library.py").write_text(PLANTED)
    sys.path.append(str(directory))
    return directory


@pytest.mark.parametrize("path", ["own_method:answer", "own_method.py:answer", "own_package.inner:answer"])
def test_what_is_named_finds_its_neighbours_now_and_later(here: Path, path: str) -> None:
    (here / "own_package").mkdir()
    for file in (here / "own_method.py", here / "own_package" / "inner.py"):
        file.write_text("import own_helper\ndef answer():\n    import own_later\n    return own_later.VALUE\n")
    (here / "own_helper.py").touch()
    (here / "own_later.py").write_text("VALUE = 42\n")
    assert from_import_path(path, "strategy")() == 42


def test_a_neighbour_wins_over_an_installed_module_while_what_is_named_is_imported(here: Path, installed: Path) -> None:
    (here / "own_method.py").write_text("import own_library\nFILE = own_library.__file__\n")
    assert Path(from_import_path("own_method:FILE", "strategy")).parent == here


def test_no_neighbour_takes_the_place_of_an_installed_module_afterwards(here: Path, installed: Path) -> None:
    (here / "own_method.py").write_text("def later():\n    import own_library\n")
    from_import_path("own_method:later", "strategy")()
    assert not (here / "own_library.ran").exists()


def test_an_installed_module_that_is_named_finds_nothing_in_the_working_directory(here: Path, installed: Path) -> None:
    (installed / "own_installed.py").write_text("import own_library\nVALUE = 42\n")
    assert from_import_path("own_installed:VALUE", "strategy") == 42
    assert not (here / "own_library.ran").exists()


def test_replaying_a_journal_runs_no_code_that_lies_in_the_working_directory(tmp_path: Path) -> None:
    """The digits come from scikit-learn, which is imported when they are needed."""
    open_service(tmp_path / "journal", make_settings(strategy="fedasync")).journal.close()
    planted = [tmp_path / f"{name}.py" for name in ("sklearn", "scipy")]
    for file in planted:
        file.write_text(PLANTED)
    command = [sys.executable, "-m", "polytempo", "replay", "journal"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not [file for file in planted if file.with_suffix(".ran").exists()]
