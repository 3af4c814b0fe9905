"""Arrival groups under the service: its clock, its timers, its journal, what it tells."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from polytempo.cli.main import app
from polytempo.serve.server.status import read_status
from support.serving import Hosted, hosted, nudge, restarted, running

COMPASS = {"q_min": 2, "q_max": 10}


def three_in_a_group(served: Hosted) -> None:
    """Clients 0, 1, 2 need 1, 2 and 2.5 seconds per step. At 5 s the group of the first, made at 2 s with 10 steps, is
    expected at 12 s and waits until 14 s; the others have 4 and 2 steps for it."""
    for client in range(3):
        served.hello(client)
        served.ready(client)
    for client, now in enumerate((2.0, 4.0, 5.0)):
        served.at(now)
        served.push(client)
    flights = served.host.service.flights
    assert [flights[client].order.work.steps for client in range(3)] == [10, 4, 2]
    assert {(f.order.due.group, f.order.due.expected, f.order.due.latest) for f in flights.values()} == {
        (1, 12.0, 14.0)
    }


def test_a_timer_of_the_service_ends_a_group_whose_last_client_does_not_come(tmp_path: Path) -> None:
    with hosted(tmp_path, "fedcompass", parameters=COMPASS) as served:
        three_in_a_group(served)
        version = served.host.service.strategy.model.version
        served.at(12.0)
        served.push(0)
        served.push(1)
        assert served.task(0) == served.task(1) == 0
        served.at(13.9)
        assert served.host.service.strategy.model.version == version
        served.at(14.01)
        assert served.host.service.strategy.model.version == version + 1
        assert served.task(0) > 0
        assert served.task(1) > 0
        assert served.sessions[0].kinds()[-1] == "task"
        served.at(60.0)
        served.push(2)  # late, but not lost
        assert len(served.host.service.strategy.late) == 1
        assert served.task(2) > 0


def test_a_killed_service_comes_back_to_its_groups_buffers_and_timers(tmp_path: Path) -> None:
    with hosted(tmp_path, "fedcompass", parameters=COMPASS) as served:
        three_in_a_group(served)
        served.at(12.0)
        served.push(0)
        again = served.after_crash(tmp_path / "crash")
        assert again.digest() == served.digest()
        again.hello(0)
        again.hello(1)
        again.at(2.5)  # uptime goes on from 12 s, so it is 14.5 s
        assert again.host.service.now == pytest.approx(14.5)
        assert again.task(0) > 0
        assert list(again.host.service.strategy.compass.groups) == [2]
        assert restarted(again.copied(tmp_path / "again"), served.settings) == again.digest()
        again.close()


def test_real_timers_end_a_group_on_the_wall_clock(tmp_path: Path) -> None:
    given = {"parameters": {"q_min": 2, "q_max": 4}}
    with (
        running(tmp_path, "fedcompass", clients=2, **given) as server,
        server.client(0) as here,
        server.client(1) as gone,
    ):
        first, never = here.task(30), gone.task(30)
        gone.push(never, nudge(never), samples=5, timeout=30)
        gone.task(30)  # of which nothing will be heard
        here.push(first, nudge(first), samples=5, timeout=30)
        for _ in range(3):  # whether alone or with the other, the next task comes
            task = here.task(30)
            here.push(task, nudge(task), samples=5, timeout=30)
        assert server.host.service.members[0].updates == 4


def test_the_status_and_the_log_tell_of_groups_and_idle_clients(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with hosted(tmp_path, "fedcompass", parameters=COMPASS) as served:
        three_in_a_group(served)
        served.at(12.0)
        with caplog.at_level("INFO"):
            served.push(0)
        (told,) = [record.fields for record in caplog.records if record.getMessage() == "updated"]  # type: ignore[attr-defined]
        assert (told["client"], told["arrival_group"], told["expected"], told["latest"]) == (0, 1, 12.0, 14.0)
        served.at(13.0)
        served.disconnect(2)
        served.host.write_status(stopping=True)
        said = {row["client"]: row for row in read_status(served.directory)["clients"]}
        assert (said[1]["arrival_group"], said[1]["expected"]) == (1, 12.0)
        assert "arrival_group" not in said[0]
        assert said[0]["idle_share"] == pytest.approx(1 / 13)
        assert said[1]["idle_share"] == 0.0
    shown = CliRunner().invoke(app, ["status", "--dir", str(tmp_path)]).stdout
    assert all(word in shown for word in ("group", "expected", "offline", "1 s ago", "8%"))
    assert "…" not in shown
