"""One-time codes: each becomes one token, once, and only while it counts."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from polytempo.core.errors import UserError
from polytempo.serve.access import enrolment as codes
from polytempo.serve.access import live, tokens
from polytempo.serve.access.enrolment import enrol, make_code
from polytempo.serve.access.live import Access
from polytempo.serve.access.roster import Roster
from polytempo.serve.access.tokens import make_operator, make_tokens, revoke_client
from polytempo.serve.addresses import peer_named, peer_of
from polytempo.serve.paths import ACCESS
from polytempo.serve.server.network import enrolment as enrolments_module
from polytempo.serve.server.network.enrolment import Enrolments
from polytempo_client.protocol.framing import CLIENT_OPTIONS, ENROL
from polytempo_client.protocol.wire_pb2 import Enrolled, Enrolment
from polytempo_client.session import enrolment as enrolment_module
from polytempo_client.session.credentials import hash_of, read_token
from polytempo_client.session.enrolment import enrol_client
from support.serving import nudge, running

TOKEN, OTHER = hash_of("a token"), hash_of("another token")


def roster(directory: Path) -> Roster:
    return Roster.read(directory / ACCESS)


def clock_says(monkeypatch: pytest.MonkeyPatch, **later: float) -> None:
    now = codes.utc_now() + timedelta(**later)
    for module in (codes, tokens):
        monkeypatch.setattr(module, "utc_now", lambda: now)


# What a code does to the roster.


def test_a_code_becomes_a_token_once(tmp_path: Path) -> None:
    code = make_code(tmp_path, 4)
    assert enrol(tmp_path, code, TOKEN) == (4, None)
    assert roster(tmp_path).client_of("a token", time.time()) == 4
    with pytest.raises(UserError, match="not known: it was used"):
        enrol(tmp_path, code, OTHER)
    assert roster(tmp_path).client_of("another token", time.time()) is None
    assert roster(tmp_path).codes == {}


def test_the_same_enrolment_again_is_answered_alike_and_changes_nothing(tmp_path: Path) -> None:
    code = make_code(tmp_path, 4, days=30)
    first = enrol(tmp_path, code, TOKEN)
    before = (tmp_path / ACCESS).read_bytes()
    assert enrol(tmp_path, code, TOKEN) == first
    assert (tmp_path / ACCESS).read_bytes() == before


def test_a_code_counts_for_its_hours_and_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    early, late = make_code(tmp_path, 0, hours=2), make_code(tmp_path, 1, hours=2)
    with monkeypatch.context() as patch:
        clock_says(patch, hours=1.9)
        assert enrol(tmp_path, early, TOKEN) == (0, None)
    clock_says(monkeypatch, hours=2.1)
    with pytest.raises(UserError, match="has expired"):
        enrol(tmp_path, late, OTHER)
    assert list(roster(tmp_path).clients) == [0]


def test_the_days_of_a_code_are_those_of_its_token_from_the_enrolment_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = make_code(tmp_path, 0, hours=48, days=30)
    clock_says(monkeypatch, hours=24)
    _, expires = enrol(tmp_path, code, TOKEN)
    assert expires == codes.utc_now() + timedelta(days=30)
    assert roster(tmp_path).clients[0].expires == expires


@pytest.mark.parametrize("stranger", ["", "no such code", "\0", "x" * 100_000])
def test_what_never_was_a_code_is_refused(tmp_path: Path, stranger: str) -> None:
    make_code(tmp_path, 0)
    with pytest.raises(UserError, match="never was one"):
        enrol(tmp_path, stranger, TOKEN)


def test_the_hash_of_a_code_is_not_a_code_and_the_code_is_not_kept(tmp_path: Path) -> None:
    code = make_code(tmp_path, 0)
    assert code not in (tmp_path / ACCESS).read_text()
    with pytest.raises(UserError, match="not known"):
        enrol(tmp_path, hash_of(code), TOKEN)


@pytest.mark.parametrize("sha", ["", "a token", TOKEN.upper(), TOKEN[1:], TOKEN + "\n", "g" * 64])
def test_what_is_no_hash_is_refused_and_the_code_can_still_be_used(tmp_path: Path, sha: str) -> None:
    code = make_code(tmp_path, 0)
    with pytest.raises(UserError, match="64 hexadecimal digits"):
        enrol(tmp_path, code, sha)
    assert enrol(tmp_path, code, TOKEN) == (0, None)


def test_the_token_of_somebody_else_is_refused_and_the_code_can_still_be_used(tmp_path: Path) -> None:
    make_tokens(tmp_path, 1)
    make_operator(tmp_path, "anna", "admin")
    code = make_code(tmp_path, 1)
    for taken in (roster(tmp_path).clients[0].token, roster(tmp_path).operators["anna"].token):
        with pytest.raises(UserError, match="somebody else's"):
            enrol(tmp_path, code, taken)
    assert enrol(tmp_path, code, TOKEN) == (1, None)


def test_revoking_a_client_takes_its_codes_and_an_enrolment_cannot_be_repeated_then(tmp_path: Path) -> None:
    used = make_code(tmp_path, 0)
    enrol(tmp_path, used, TOKEN)
    unused = make_code(tmp_path, 0)
    revoke_client(tmp_path, 0)
    for code in (used, unused):
        with pytest.raises(UserError, match="not known"):
            enrol(tmp_path, code, TOKEN)
    assert roster(tmp_path).clients == {}


def test_a_new_code_makes_the_clients_earlier_code_void_and_leaves_its_token(tmp_path: Path) -> None:
    make_tokens(tmp_path, 1)
    first, other, second = make_code(tmp_path, 0), make_code(tmp_path, 1), make_code(tmp_path, 0)
    with pytest.raises(UserError, match="not known"):
        enrol(tmp_path, first, TOKEN)
    assert roster(tmp_path).client_of(read_token(tmp_path / "client-0.token"), time.time()) == 0
    assert enrol(tmp_path, second, TOKEN)[0] == 0
    assert enrol(tmp_path, other, OTHER)[0] == 1
    assert roster(tmp_path).client_of(read_token(tmp_path / "client-0.token"), time.time()) is None


@pytest.mark.parametrize(("client", "hours"), [(-1, 1.0), (10**9, 1.0), (0, 0.0), (0, float("nan")), (0, 9000.0)])
def test_an_impossible_code_is_refused_and_nothing_is_written(tmp_path: Path, client: int, hours: float) -> None:
    with pytest.raises(UserError, match=r"no number of a client|not possible"):
        make_code(tmp_path / "new", client, hours)
    assert not (tmp_path / "new").exists()


def test_a_code_for_another_client_than_the_certificate_shown_is_refused_and_not_used_up(tmp_path: Path) -> None:
    code = make_code(tmp_path, 1)
    for shown in ((), ("client-0",), ("client-11",)):
        with pytest.raises(UserError, match="code is for client 1, and the certificate shown is not"):
            enrol(tmp_path, code, TOKEN, shown)
    assert enrol(tmp_path, code, TOKEN, ("client-1",)) == (1, None)


# Several at once.


def test_threads_that_change_the_roster_at_once_lose_nothing(tmp_path: Path) -> None:
    codes = [make_code(tmp_path, client) for client in range(20)]
    with ThreadPoolExecutor(8) as threads:
        enrolled = [threads.submit(enrol, tmp_path, code, hash_of(code)) for code in codes]
        made = [threads.submit(make_operator, tmp_path, f"operator{i}", "viewer") for i in range(5)]
        made += [threads.submit(make_code, tmp_path, client) for client in range(100, 105)]
    assert [one.result()[0] for one in enrolled] == list(range(20))
    known = roster(tmp_path)
    assert sorted(known.clients) == list(range(20))
    assert (len(known.operators), len(known.codes)) == (5, 5)
    assert all(one.exception() is None for one in made)


ANOTHER_PROGRAM = """
import fcntl, json, pathlib, sys
directory = pathlib.Path(sys.argv[1])
with open(directory / ".access.json.lock", "r+") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    known = json.loads((directory / "access.json").read_text())
    print("locked", flush=True)
    sys.stdin.read()
    known["operators"] = {"bert": {"token": "b" * 64, "role": "viewer"}}
    (directory / "access.json").write_text(json.dumps(known))
"""


def test_another_program_that_is_at_it_is_waited_for_and_what_it_wrote_is_kept(tmp_path: Path) -> None:
    code = make_code(tmp_path, 0)
    command = [sys.executable, "-S", "-c", ANOTHER_PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"locked\n"
        with ThreadPoolExecutor(1) as thread:
            enrolled = thread.submit(enrol, tmp_path, code, TOKEN)
            assert not enrolled.done()
            program.communicate(timeout=30)
            assert enrolled.result(30) == (0, None)
    assert list(roster(tmp_path).clients) == [0]
    assert list(roster(tmp_path).operators) == ["bert"]


def test_of_two_that_use_one_code_at_once_one_gets_it(tmp_path: Path) -> None:
    code, both = make_code(tmp_path, 0), threading.Barrier(8)

    def use(i: int) -> str | None:
        both.wait(30)
        try:
            enrol(tmp_path, code, hash_of(f"token {i}"))
        except UserError:
            return None
        return f"token {i}"

    with ThreadPoolExecutor(8) as threads:
        (winner,) = [token for token in threads.map(use, range(8)) if token is not None]
    assert roster(tmp_path).client_of(winner, time.time()) == 0


# A roster that is damaged while the server runs.


def test_a_roster_that_is_damaged_while_running_changes_nothing_and_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    monkeypatch.setattr(live, "log", lambda what, **_: logged.append(what))
    token = read_token(make_tokens(tmp_path, 1)[0])
    running_access = Access(tmp_path)
    whole = (tmp_path / ACCESS).read_bytes()
    (tmp_path / ACCESS).write_bytes(whole[:-5])
    assert not running_access.refresh()
    assert not running_access.refresh()
    assert running_access.roster.client_of(token, time.time()) == 0
    assert logged == ["access unreadable"]
    (tmp_path / ACCESS).unlink()
    assert not running_access.refresh()
    assert running_access.roster.client_of(token, time.time()) == 0
    (tmp_path / ACCESS).write_bytes(whole)
    revoke_client(tmp_path, 0)
    assert running_access.refresh()
    assert running_access.roster.client_of(token, time.time()) is None


# Over the network.


def test_a_client_enrols_and_takes_part_with_the_token_that_it_made(tmp_path: Path) -> None:
    with running(tmp_path, clients=1) as server:
        code, out = make_code(tmp_path, 5, days=30), tmp_path / "mine.token"
        done = enrol_client(server.address, f" {code}\n", out, insecure=True)
        assert done.client == 5
        assert done.expires == roster(tmp_path).clients[5].expires
        assert out.stat().st_mode & 0o777 == 0o600
        assert not out.with_name("mine.token.part").exists()
        with server.client_with(read_token(out)) as client:
            client.run(lambda task: (nudge(task), 5), updates=1)
            assert client.number == 5


def test_a_token_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.token").write_text("precious")
    with pytest.raises(UserError, match=r"mine\.token exists"):
        enrol_client("127.0.0.1:1", "code", tmp_path / "mine.token", insecure=True)
    assert (tmp_path / "mine.token").read_text() == "precious"


@contextmanager
def losing_answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The server does what it is asked, and its answer is lost."""
    answer: Callable[..., Any] = Enrolments.enrol

    async def lose(self: Enrolments, said: Enrolment, context: Any) -> Enrolled:
        await answer(self, said, context)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")
        raise AssertionError

    with monkeypatch.context() as patch:
        patch.setattr(Enrolments, "enrol", lose)
        yield


def test_after_a_lost_answer_the_token_is_kept_and_the_same_enrolment_goes_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tokens(tmp_path, 1)
    code, out = make_code(tmp_path, 5), tmp_path / "mine.token"
    part = out.with_name("mine.token.part")
    broken = pytest.raises(UserError, match="the connection broke")
    with losing_answers(monkeypatch), running(tmp_path) as server, broken:
        enrol_client(server.address, code, out, insecure=True)
    assert not out.exists()
    assert part.stat().st_mode & 0o777 == 0o600
    made = read_token(part)
    assert roster(tmp_path).client_of(made, time.time()) == 5
    with running(tmp_path) as server:
        assert enrol_client(server.address, code, out, insecure=True).client == 5
    assert read_token(out) == made
    assert not part.exists()


def test_a_refused_code_is_said_counted_and_leaves_no_token(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        with pytest.raises(UserError, match="does not enrol this client: This code is not known"):
            enrol_client(server.address, "no such code", tmp_path / "mine.token", insecure=True)
        assert server.shared.meters.refusals["code"] == 1
        assert not (tmp_path / "mine.token").exists()


def test_trouble_of_the_server_is_told_to_nobody_and_may_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(enrolment_module, "SECONDS", 1.0)
    with running(tmp_path) as server:
        code = make_code(tmp_path, 5)
        with monkeypatch.context() as patch:
            patch.setattr("polytempo.serve.storage.documents.write_shared", full)
            with pytest.raises(UserError, match="the server can enrol nobody now") as refused:
                enrol_client(server.address, code, tmp_path / "mine.token", insecure=True)
        assert str(tmp_path) not in str(refused.value)
        assert enrol_client(server.address, code, tmp_path / "mine.token", insecure=True).client == 5


def test_who_has_a_network_of_addresses_counts_once() -> None:
    def of(name: str) -> str:
        return peer_of(peer_named(name)[0])

    assert of("ipv6:%5B2001:db8:1:2::7%5D:50001") == of("ipv6:[2001:db8:1:2:ffff::1]:50002")
    assert of("ipv6:%5B2001:db8:1:2::7%5D:50001") != of("ipv6:%5B2001:db8:1:3::7%5D:50001")
    assert of("ipv4:192.0.2.7:50001") == of("ipv4:192.0.2.7:50002") == "192.0.2.7"


def test_enrolment_needs_no_token_and_gives_the_client_a_session_at_once_while_the_old_one_ends(
    tmp_path: Path,
) -> None:
    with running(tmp_path) as server, server.client(0) as before:
        before.wait_for_welcome(30)
        out = tmp_path / "new.token"
        enrol_client(server.address, make_code(tmp_path, 0), out, insecure=True)
        with server.client_with(read_token(out)) as client:
            client.wait_for_welcome(30)
        with pytest.raises(UserError, match="has been given another token"):
            before.task(30)


def test_strangers_who_try_codes_cost_no_disk_and_do_not_keep_a_client_from_enrolling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken_on: list[str] = []

    def counted(directory: Path, code: str, *given: Any) -> Any:
        taken_on.append(code)
        return enrol(directory, code, *given)

    monkeypatch.setattr(enrolments_module, "enrol", counted)
    with running(tmp_path) as server, grpc.insecure_channel(server.address, CLIENT_OPTIONS) as channel:
        call = channel.unary_unary(ENROL, Enrolment.SerializeToString, Enrolled.FromString)
        tries = [call.future(Enrolment(code="x" * 10_000, token_sha256=TOKEN), timeout=60) for _ in range(300)]
        code = make_code(tmp_path, 5)
        assert enrol_client(server.address, code, tmp_path / "mine.token", insecure=True).client == 5
        assert all(one.exception(60) is not None for one in tries)
        assert server.shared.meters.refusals["code"] > 1
        assert taken_on == [code]
