"""A client of a service that is given as several addresses."""

from pathlib import Path

import grpc
import pytest
from test_errors import answering

from polytempo.core.errors import UserError
from polytempo_client import Client, Servers
from polytempo_client.errors import CertificateError, TokenError, UnreachableError
from polytempo_client.protocol.framing import NOT_HERE
from polytempo_client.session import search
from polytempo_client.session.addresses import servers_of
from polytempo_client.session.failures import FailedAttempt
from polytempo_client.session.search import Search
from support.serving import free_port, nudge, running

ELSEWHERE = FailedAttempt("not here.", elsewhere=True)
GONE = FailedAttempt("Connection refused.")


def tried(searching: Search, *failures: FailedAttempt) -> list[tuple[str, float]]:
    """The address after each failed attempt, and the longest pause before it."""
    found = []
    for failure in failures:
        searching.begin()
        assert searching.hopeless(failure) is None
        pause = searching.pause(failure)
        found.append((searching.address, pause))
    return found


@pytest.fixture(autouse=True)
def _longest_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.uniform", lambda least, most: most)


# Which address, and after which pause.


def test_a_standby_costs_no_pause_and_a_round_of_standbys_one() -> None:
    searching = Search(servers_of("a:1,b:2,c:3"))
    found = tried(searching, *[ELSEWHERE] * 6)
    assert found == [("b:2", 0), ("c:3", 0), ("a:1", 0.1), ("b:2", 0), ("c:3", 0), ("a:1", 0.2)]


def test_pauses_grow_to_a_second_where_there_are_several_servers_and_to_ten_where_there_is_one() -> None:
    several, one = Search(servers_of("a:1,b:2")), Search(servers_of("a:1"))
    assert [pause for _, pause in tried(several, *[GONE] * 6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert [pause for _, pause in tried(one, *[GONE] * 9)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]


def test_pauses_begin_anew_after_an_answer_and_stay_short_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(search.time, "monotonic", lambda: now)
    searching = Search(servers_of("a:1"))
    tried(searching, *[GONE] * 9)
    searching.note_session()
    searching.note_answer()
    assert [pause for _, pause in tried(searching, *[GONE] * 6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    now += 61.0
    assert [pause for _, pause in tried(searching, *[GONE] * 3)] == [1.0, 2.0, 4.0]


def test_a_wrong_certificate_is_hopeless_when_every_server_has_one_and_none_was_ever_right() -> None:
    wrong = FailedAttempt("wrong", CertificateError("wrong"))
    searching = Search(servers_of("a:1,b:2"))
    assert searching.hopeless(wrong) is None
    assert searching.hopeless(GONE) is None
    assert searching.hopeless(wrong) is None
    assert isinstance(searching.hopeless(wrong), CertificateError)
    searching.note_session()
    assert [searching.hopeless(wrong) for _ in range(5)] == [None] * 5


def test_a_wrong_token_is_hopeless_at_once() -> None:
    searching = Search(servers_of("a:1,b:2"))
    assert isinstance(searching.hopeless(FailedAttempt("unknown", TokenError("unknown"))), TokenError)


def test_a_client_that_is_to_give_up_counts_from_its_last_session(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(search.time, "monotonic", lambda: now)
    searching = Search(Servers(("a:1",), give_up_after=3600))
    now += 3000
    searching.begin()
    searching.note_session()
    assert searching.hopeless(GONE) is None
    now += 3599
    searching.begin()
    assert searching.hopeless(GONE) is None
    now += 1
    assert isinstance(searching.hopeless(GONE), UnreachableError)


@pytest.mark.parametrize("given", [[], "", ["a"], "a:1,,b:2", "a:1,b", Path])
def test_addresses_that_are_none_are_an_error(given: object) -> None:
    with pytest.raises((UserError, TypeError)):
        servers_of(given)  # type: ignore[arg-type]


# Real servers.


def test_a_client_goes_on_to_the_server_that_has_the_service(tmp_path: Path) -> None:
    with (
        answering(grpc.StatusCode.UNAVAILABLE, f"{NOT_HERE}: this server stands by") as standby,
        running(tmp_path) as server,
        Client([standby, server.address], server.token(0), insecure=True) as client,
    ):
        client.run(lambda task: (nudge(task), 5), updates=2)
        assert server.host.service.members[0].updates == 2


def test_what_one_server_did_not_acknowledge_is_pushed_to_the_next(tmp_path: Path) -> None:
    """The second server takes over the journal of the first, as a standby does."""
    ports = free_port(), free_port()
    addresses = [f"127.0.0.1:{port}" for port in ports]
    with running(tmp_path, port=ports[0]) as first:
        client = Client(addresses, first.token(0), insecure=True, keep=tmp_path / "task")
        task = client.task(60)
        client.push(task, nudge(task), samples=5, timeout=60)
        task = client.task(60)
    with client, running(tmp_path, port=ports[1]) as second:
        client.push(task, nudge(task), samples=5, timeout=60)
        assert second.host.service.members[0].updates == 2
        assert client.task(60).number > task.number


def test_a_kept_task_is_taken_up_at_another_address_of_the_same_service(tmp_path: Path) -> None:
    ports = free_port(), free_port()
    both = [f"127.0.0.1:{port}" for port in ports]
    with running(tmp_path, port=ports[0]) as first:
        token = first.token(0)
        with Client(both, token, insecure=True, keep=tmp_path / "task") as client:
            number = client.task(60).number
    with running(tmp_path, port=ports[1]), Client(both, token, insecure=True, keep=tmp_path / "task") as again:
        assert again.task(60).number == number
