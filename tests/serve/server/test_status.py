"""What a service tells of its clients, and of the mixtures that its method estimates."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from polytempo.cli.main import app
from polytempo.core.events import Update
from polytempo.serve.access.roster import Roster
from polytempo.serve.access.tokens import make_tokens
from polytempo.serve.paths import ACCESS
from polytempo.serve.server import status as status_module
from polytempo.serve.server.status import read_status
from polytempo.strategies import Strategy
from support.serving import Hosted, hosted, join_all, some_events


class Estimating(Strategy):
    """Finds one third of the first cluster in everybody who has handed in."""

    def setup(self) -> None:
        self.heard: list[int] = []

    def updated(self, update: Update, now: float) -> None:
        self.heard.append(update.client)

    def mixture(self, client: int) -> np.ndarray | None:
        return np.array([1 / 3, 2 / 3]) if client in self.heard else None


def one_of_two_hands_in(served: Hosted) -> None:
    for client in range(2):
        served.hello(client)
        served.ready(client)
    served.push(0)
    host = served.host
    host.write_status(stopping=True)


def test_the_status_and_the_log_tell_the_mixture_of_who_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr("polytempo.serve.server.host.log", lambda event, **said: logged.append((event, said)))
    with hosted(tmp_path, "test_status:Estimating") as served:
        one_of_two_hands_in(served)
        first, second = read_status(served.directory)["clients"]
        assert first["mixture"] == [0.333, 0.667]
        assert "mixture" not in second
    (told,) = [said for event, said in logged if event == "updated"]
    assert told["mixture"] == [0.333, 0.667]
    shown = CliRunner().invoke(app, ["status", "--dir", str(tmp_path)]).stdout
    assert "mixture %" in shown
    rows = [line.rstrip() for line in shown.splitlines() if "training" in line]
    assert [row.endswith(" 33 67") for row in rows] == [True, False]
    assert "…" not in shown


def test_a_method_without_estimates_shows_no_mixtures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[dict[str, Any]] = []
    monkeypatch.setattr("polytempo.serve.server.host.log", lambda _, **said: logged.append(said))
    with hosted(tmp_path) as served:
        one_of_two_hands_in(served)
    assert logged
    assert not any("mixture" in said for said in logged)
    assert "mixture" not in CliRunner().invoke(app, ["status", "--dir", str(tmp_path)]).stdout


def test_the_journals_bytes_are_those_that_no_snapshot_makes_superfluous(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        some_events(served)
        served.host.write_status(stopping=True)
        assert served.host.status()["journal"]["bytes"] > 0
        served.host.journal.snapshot(served.host.service.save_state())
        served.host.write_status(stopping=True)
        assert served.host.status()["journal"]["bytes"] == 0


def test_whoever_may_come_and_never_did_is_listed_and_in_no_cluster(tmp_path: Path) -> None:
    make_tokens(tmp_path, 2)
    with hosted(tmp_path) as served:
        served.hello(0)
        served.shared.access.roster = Roster.read(tmp_path / ACCESS)
        served.host.write_status(stopping=True)
        said = read_status(served.directory)
    assert [(row["client"], row["doing"], row["cluster"]) for row in said["clients"]] == [
        (0, "paused", 0),
        (1, "away", None),
    ]
    assert said["strategy"] == "fedasync"


def test_a_server_that_is_alive_and_does_not_write_is_told_from_one_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosted(tmp_path) as served:
        served.host.write_status()
        written = served.host.status()["written"]
        monkeypatch.setattr(status_module.time, "time", lambda: written + 42.0)
        shown = CliRunner().invoke(app, ["status", "--dir", str(tmp_path)]).stdout
        assert shown.startswith("running, but has written no status for 42 s (stuck?)")
        assert CliRunner().invoke(app, ["status", "--check", "--dir", str(tmp_path)]).exit_code == 1
    assert CliRunner().invoke(app, ["status", "--dir", str(tmp_path)]).stdout.startswith("not running")


def test_a_server_that_cannot_read_who_may_talk_to_it_says_so(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        served.hello(0)
        served.shared.access.problem = "access.json [is] damaged"
        served.host.write_status(stopping=True)
    shown = CliRunner().invoke(app, ["status", "--dir", str(tmp_path)]).stdout
    assert "locked, nobody new is let in: access.json [is] damaged" in shown


def test_a_status_is_replaced_in_one_step_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        some_events(served)
        served.host.write_status(stopping=True)
        (served.directory / ".status.json.left-by-a-crash").write_text("{")
        served.host.journal.snapshot(served.host.service.save_state())
        assert [path.name for path in served.directory.glob("*status*")] == ["status.json"]


def test_the_command_shows_who_is_better_off_than_alone(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        join_all(served, 3)
        served.push(0, used=0.75, alone=0.5)
        served.push(1, used=0.25, alone=0.5)
        served.host.write_status(stopping=True)
    shown = CliRunner().invoke(app, ["status", "--dir", str(tmp_path)]).stdout
    assert "used" in shown
    assert [line.split()[-3:] for line in shown.splitlines() if "50.0%" in line] == [
        ["75.0%", "50.0%", "yes"],
        ["25.0%", "50.0%", "no"],
    ]
