"""Both distributions, as somebody gets them who installs them: built twice, installed where nothing is. Builds and
installs take minutes and a package index, so these tests run by ``make test-dist``."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.dist

ROOT = Path(__file__).parents[2]


def run(*command: object, cwd: Path = ROOT) -> str:
    done = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(into: Path) -> dict[str, bytes]:
    for project in (ROOT / "client", ROOT):
        run(sys.executable, "-m", "build", "--outdir", into, project)
    return {file.name: file.read_bytes() for file in into.iterdir()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dist")
    build(directory)
    return directory


def new_environment(directory: Path, *packages: object) -> Path:
    """The folder of its programs."""
    run(sys.executable, "-m", "venv", directory)
    programs = directory / ("Scripts" if sys.platform == "win32" else "bin")
    run(programs / "python", "-m", "pip", "install", "--quiet", *packages)
    return programs


def test_the_same_source_builds_the_same_bytes(built: Path, tmp_path: Path) -> None:
    first = {file.name: file.read_bytes() for file in built.iterdir()}
    assert len(first) == 4
    assert build(tmp_path) == first


def test_the_client_installs_alone_from_its_source(built: Path, tmp_path: Path) -> None:
    (source,) = built.glob("polytempo_client-*.tar.gz")
    programs = new_environment(tmp_path / "env", source)
    assert "join" in run(programs / "polytempo-client", "--help")
    assert "torch" not in run(programs / "python", "-m", "pip", "list")


def test_the_quickstart_runs_from_the_wheels(built: Path, tmp_path: Path) -> None:
    index = ("--find-links", built, "--constraint", ROOT / "constraints.txt")
    programs = new_environment(tmp_path / "env", *index, "polytempo")
    quick = ("compare", "standalone", "fedasync", "--seeds", "1", "--updates", "100", "--out", tmp_path / "runs")
    run(programs / "polytempo", *quick, cwd=tmp_path)
    assert (tmp_path / "runs" / "report.html").stat().st_size > 10_000
