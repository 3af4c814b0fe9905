"""A service goes on while its servers change from one wheel of Polytempo to another, each with packages of its own."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from polytempo.serve.process.handing_over import hand_over
from polytempo_client import Client
from support import ROOT
from support.postgres import Server
from support.serving import free_port, nudge, until
from support.several import QUICK, Several, several

pytestmark = [pytest.mark.wheels, pytest.mark.usefixtures("short_pauses")]
PATIENT = 180.0
NEW_VERSION = "0.9.0"


def installed(source: Path, to: Path) -> Path:
    """The wheels of this source, in a directory; the packages that they need are those of the test."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheels = to.with_suffix(".wheels")
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", wheels, source / "client", source], check=True)
    subprocess.run([*pip, "install", "--no-deps", "--target", to, *wheels.glob("*.whl")], check=True)
    return to


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Where the old version and the new one are installed: the new one's code differs, and says so."""
    folder = tmp_path_factory.mktemp("wheels")
    for name in ("old", "new"):
        source = folder / f"{name}.source"
        ignored = shutil.ignore_patterns("*.egg-info", "__pycache__", "build")
        for part in ("src", "client"):
            shutil.copytree(ROOT / part, source / part, ignore=ignored)
        for part in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / part, source)
    project = folder / "new.source" / "pyproject.toml"
    version = next(line for line in project.read_text().splitlines() if line.startswith("version = "))
    project.write_text(project.read_text().replace(version, f'version = "{NEW_VERSION}"'))
    with (folder / "new.source/src/polytempo/core/events.py").open("a") as code:
        code.write("# newer\n")
    return {name: installed(folder / f"{name}.source", folder / name) for name in ("old", "new")}


class Wheeled:
    """A server that runs from a wheel."""

    def __init__(self, packages: Path, directory: Path) -> None:
        self.directory, self.address = directory, f"127.0.0.1:{free_port()}"
        words = ["serve", "fedasync", "--insecure", "--dir", str(directory), "--listen", self.address]
        command = [sys.executable, "-c", "from polytempo.cli.main import main; main()", *words]
        self.log = directory / f"{packages.name}.log"
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=directory, env={**os.environ, "PYTHONPATH": str(packages)}
            )

    def logged(self, event: str) -> list[dict[str, Any]]:
        rows = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [row for row in rows if row["event"] == event]

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(PATIENT)


def told(servers: Several, address: str) -> dict[str, Any]:
    rows = [json.loads(words) for (words,) in servers.execute("SELECT told FROM servers")]
    return next((row for row in rows if row["address"] == address), {})


def test_a_standby_of_a_newer_wheel_takes_over_at_a_hand_over(
    tmp_path: Path, database: Server, wheels: dict[str, Path]
) -> None:
    with several(tmp_path, database, QUICK) as servers, ExitStack() as stack:
        servers.set(f"[failover]\nlease_seconds = {QUICK}\n")
        old = Wheeled(wheels["old"], servers.prepared("a"))
        stack.callback(old.process.kill)
        until(lambda: told(servers, old.address).get("role") == "leader", PATIENT)
        new = Wheeled(wheels["new"], servers.prepared("b"))
        stack.callback(new.process.kill)
        until(lambda: told(servers, new.address).get("follows") == "snapshots", PATIENT)
        token = tmp_path / "a" / "client-0.token"
        with Client([old.address, new.address], token, insecure=True) as client:
            tasks = []

            def push(count: int) -> None:
                for _ in range(count):
                    task = client.task(PATIENT)
                    client.push(task, nudge(task), samples=10, timeout=PATIENT)
                    tasks.append(task.number)

            push(3)
            assert hand_over(tmp_path / "a").leader == new.address
            push(3)
            until(lambda: told(servers, old.address).get("follows") == "snapshots", PATIENT)
            assert old.stop() == 0
            upgraded = Wheeled(wheels["new"], servers.prepared("a"))
            stack.callback(upgraded.process.kill)
            until(lambda: told(servers, upgraded.address).get("follows") == "events", PATIENT)
            push(1)
        sql = "SELECT detail::json ->> 'task' FROM events WHERE kind = 'updated' ORDER BY number"
        since_the_upgrade = [int(task) for (task,) in servers.execute(sql)]
        assert tasks[-len(since_the_upgrade) :] == since_the_upgrade  # the snapshot has the others
        assert servers.lease()["last"] >= len(tasks)
        assert new.logged("started")[0]["version"] == NEW_VERSION
        assert old.logged("started")[0]["version"] != NEW_VERSION
