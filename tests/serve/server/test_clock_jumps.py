"""The system's clock jumps by hours or years while a service runs, or the machine sleeps."""

import io
import json
import math
from pathlib import Path

import pytest

from polytempo.core.errors import UserError
from polytempo.serve.access import roster as rosters
from polytempo.serve.access import steady_time
from polytempo.serve.access.enrolment import enrol, make_code
from polytempo.serve.access.live import Access
from polytempo.serve.access.steady_time import JUMP, LASTING, SteadyTime
from polytempo.serve.access.tokens import make_tokens
from polytempo.serve.journal import journal as journals
from polytempo.serve.paths import STATUS
from polytempo.serve.server import status as statuses
from polytempo.serve.server.clock import Clock
from polytempo.serve.server.status import read_status
from polytempo_client.logs import log, log_to
from support.serving import ManualClock, hosted, join_all, nudge, running, until

YEAR = 365 * 86400.0
JUMPS = pytest.mark.parametrize("jump", [3600.0, -3600.0, 10 * YEAR, -30 * YEAR])


class Wall:
    """The system's clock, which the test sets, beside one that runs evenly."""

    def __init__(self) -> None:
        self.now, self.even = 2e9, ManualClock()

    def time(self) -> float:
        return self.now


def steady(wall: Wall) -> SteadyTime:
    return SteadyTime(wall.time, wall.even)


@JUMPS
def test_a_clock_that_is_wrong_for_a_moment_moves_nobodys_expiry(jump: float) -> None:
    wall = Wall()
    now = steady(wall)
    before = now()
    wall.now += jump
    assert now() == before
    wall.even.now += LASTING / 2
    wall.now += LASTING / 2 - jump
    assert now() == pytest.approx(before + LASTING / 2)


@JUMPS
def test_a_jump_that_lasts_counts(jump: float) -> None:
    wall = Wall()
    now = steady(wall)
    wall.now += jump
    now()
    wall.even.now += LASTING
    wall.now += LASTING
    now()
    assert now() == pytest.approx(wall.now)


@JUMPS
def test_a_second_jump_has_to_last_as_long_as_the_first(jump: float) -> None:
    wall = Wall()
    now = steady(wall)
    before = now()
    wall.now += 2 * 86400.0
    now()
    wall.even.now += LASTING
    wall.now += LASTING + jump
    assert now() == pytest.approx(before + LASTING)
    wall.even.now += LASTING
    wall.now += LASTING
    assert now() == pytest.approx(wall.now)


def test_a_clock_that_is_set_by_a_little_is_followed_at_once() -> None:
    wall = Wall()
    now = steady(wall)
    for _ in range(100):
        wall.now += JUMP / 2
        assert now() == pytest.approx(wall.now)


def test_clients_with_tokens_that_end_stay_through_a_jump_of_years(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tokens(tmp_path, 2, days=30)
    said: list[str] = []
    monkeypatch.setattr(steady_time, "log", lambda event, **_: said.append(event))
    wall = Wall()
    wall.now = rosters.utc_now().timestamp()
    with running(tmp_path) as server, server.client(0) as client:
        task = client.task(30)
        monkeypatch.setattr(server.shared.access, "now", SteadyTime(wall.time))
        wall.now += 10 * YEAR
        until(lambda: "clock jumped" in said)
        client.push(task, nudge(task), samples=5, timeout=30)
        with server.client(1) as newcomer:
            newcomer.task(30)


def test_an_access_goes_by_a_steady_time(tmp_path: Path) -> None:
    make_tokens(tmp_path, 1)
    assert isinstance(Access(tmp_path).now, SteadyTime)


def test_sessions_are_checked_again_also_after_the_clock_went_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the wall clock reaches the time of the last check, none was made."""
    make_tokens(tmp_path, 1, days=30)
    with running(tmp_path) as server, server.client(0) as client:
        task = client.task(30)
        monkeypatch.setattr("time.time", lambda: 1e9)
        monkeypatch.setattr(server.shared.access, "now", lambda: 9e9)
        with pytest.raises(UserError, match="the token has expired"):
            client.hold(task, 30)


def test_a_code_that_a_wrong_clock_refused_still_works_when_the_clock_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tokens(tmp_path, 1)
    code = make_code(tmp_path, 5)
    with monkeypatch.context() as wrong:
        late = rosters.utc_now().replace(year=2999)
        wrong.setattr("polytempo.serve.access.enrolment.utc_now", lambda: late)
        with pytest.raises(UserError, match="has expired"):
            enrol(tmp_path, code, "a" * 64)
    assert enrol(tmp_path, code, "a" * 64)[0] == 5


@JUMPS
def test_a_service_goes_on_through_a_jump_and_its_own_time_does_not_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    wall = Wall()
    for module in (journals, statuses):
        monkeypatch.setattr(module.time, "time", wall.time)
    with hosted(tmp_path) as served:
        join_all(served)
        served.push(0)
        wall.now += jump
        served.push(1)
        served.host.write_status(stopping=True)
        rows = served.host.journal.store.query("SELECT at, wall FROM events ORDER BY number")
        status = json.loads((served.host.journal.directory / STATUS).read_text())
    times = [at for at, _ in rows]
    assert times == sorted(times)
    assert times[-1] == served.clock.now
    assert all(math.isfinite(written) and written > 0 for _, written in rows)
    assert rows[-1][1] == wall.now
    assert status["uptime"] == served.clock.now
    assert status["written"] == wall.now


def test_a_status_from_the_future_is_no_sign_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock was set back, and the process that wrote it is gone. Its number may be another's by now."""
    with hosted(tmp_path) as served:
        served.host.write_status()
        directory = served.host.journal.directory
        assert read_status(directory)["running"]
        now = statuses.time.time()
        monkeypatch.setattr(statuses.time, "time", lambda: now - 3600)
        assert not read_status(directory)["running"]


def test_the_services_clock_stands_still_while_the_machine_sleeps() -> None:
    """The monotonic clock does not count sleep. One that did, or went back, would not make time run backwards."""
    seconds = ManualClock()
    clock = Clock(100.0, seconds)
    assert clock() == 100.0
    seconds.now -= 5000.0
    assert clock() == 100.0
    seconds.now += 1.0
    assert clock() == 101.0


@pytest.mark.parametrize("year", [1970, 2262])
def test_log_lines_have_a_time_whatever_the_clock_says(monkeypatch: pytest.MonkeyPatch, year: int) -> None:
    said = io.StringIO()
    log_to(said)
    seconds = (year - 1970) * 365.2425 * 86400 + 86400
    monkeypatch.setattr("logging.time.time", lambda: seconds)
    monkeypatch.setattr("logging.time.time_ns", lambda: int(seconds * 1e9))
    log("something")
    assert json.loads(said.getvalue())["time"].startswith(str(year))
