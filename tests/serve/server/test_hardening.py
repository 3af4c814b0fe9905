"""What a stranger, or whoever has stolen a token, cannot do to a server: hold its memory or its files, outlast a
revocation, have others put in quarantine, or write to an operator's terminal."""

import asyncio
import json
import resource
import socket
import stat
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from polytempo.serve.access.live import Access
from polytempo.serve.access.roster import LONGEST_REASON
from polytempo.serve.access.tokens import make_tokens, revoke_client
from polytempo.serve.journal.opening import open_service
from polytempo.serve.server.checks import Refused
from polytempo.serve.server.network import sessions as server_module
from polytempo.serve.server.network.enrolment import Enrolments
from polytempo.serve.server.network.incoming import Incoming, Memory
from polytempo.serve.server.operations import Limits
from polytempo.serve.storage import documents
from polytempo_client.errors import WireError
from polytempo_client.protocol.bodies import read_body
from polytempo_client.protocol.framing import CLIENT_OPTIONS, ENROL, FRAME_BYTES, SESSION
from polytempo_client.protocol.wire_pb2 import Enrolled, Enrolment, Frame, Head, Push, Ready
from polytempo_client.session.credentials import read_token
from support.serving import hosted, nudge, running, some_events, until
from support.virtual_time import run_virtually


def test_many_bytes_at_once_are_not_held_through_a_long_silence() -> None:
    limits, size = Limits(slow_seconds=30.0, slowest_bytes_per_second=4096.0), 64 * FRAME_BYTES
    first = Frame(head=Head(request=1, size=size, push=Push()), data=bytes(FRAME_BYTES))
    frames = iter([first, *[Frame(data=bytes(FRAME_BYTES))] * 62])

    async def read() -> Frame:
        frame = next(frames, None)
        if frame is None:
            await asyncio.Event().wait()
        assert frame is not None
        return frame

    async def given_up() -> float:
        incoming = Incoming(read, lambda: limits, size, Memory(), 0)
        incoming.greeted = True
        with pytest.raises(WireError, match="bytes of a message have come"):
            await incoming.next_message()
        return asyncio.get_running_loop().time()

    assert run_virtually(given_up()) == pytest.approx(30.0 + FRAME_BYTES / 4096.0, abs=0.1)


def test_an_enrolment_that_is_never_said_is_put_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent, enrolments = threading.Event(), []
    monkeypatch.setattr(
        server_module, "Enrolments", lambda *given: enrolments.append(Enrolments(*given)) or enrolments[0]
    )

    def nothing() -> Iterator[Enrolment]:
        silent.wait(60)
        yield from ()

    with running(tmp_path, limits={"hello_seconds": 0.2}) as server:
        with grpc.insecure_channel(server.address, CLIENT_OPTIONS) as channel:
            call = channel.stream_unary(ENROL, Enrolment.SerializeToString, Enrolled.FromString)
            with pytest.raises(grpc.RpcError, match="has to say its code at once"):
                call(nothing(), timeout=30)
            silent.set()
        until(lambda: len(enrolments[0]) == 0)


def test_a_connection_too_many_is_closed_and_files_are_left_for_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_most_connections", lambda: 3)
    with running(tmp_path) as server:
        strangers = [socket.create_connection(("127.0.0.1", server.port), 30) for _ in range(4)]
        try:
            # A server that lets somebody in says its settings; one that does not, nothing.
            assert sorted(bool(stranger.recv(1)) for stranger in strangers) == [False, True, True, True]
        finally:
            for stranger in strangers:
                stranger.close()
        with server.client(0) as client:
            client.run(lambda task: (nudge(task), 5), updates=1)


@pytest.mark.parametrize(("files", "connections"), [(1024, 768), (100, 50), (resource.RLIM_INFINITY, 2**31 - 1)])
def test_connections_leave_files_to_the_service(files: int, connections: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert server_module._most_connections() == connections


def test_whoever_is_revoked_while_files_have_run_out_is_out_when_there_are_some_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = read_token(make_tokens(tmp_path, 1)[0])
    access = Access(tmp_path)
    revoke_client(tmp_path, 0)
    with monkeypatch.context() as patch:
        patch.setattr(documents, "read_plain", _no_files_left)
        assert not access.refresh()
    assert access.roster.client_of(token, time.time()) == 0
    assert access.refresh()
    assert access.roster.client_of(token, time.time()) is None


def _no_files_left(_: Path) -> bytes:
    raise OSError(24, "Too many open files")


def test_nobody_is_quarantined_for_what_was_on_its_way_when_another_broke_the_strategy(tmp_path: Path) -> None:
    with hosted(tmp_path, "support.serving:Brittle", quarantine={"refusals": 6, "seconds": 600.0}) as served:
        for client in (0, 1):
            served.hello(client)
            served.ready(client)
        for _ in range(5):
            breaking = served.request(0, *served.pushed(0, answers={"break": 1}))
            on_its_way = served.request(1, Head(ready=Ready()))
            served.host.handle([breaking])
            served.host.handle([on_its_way])
            served.reconnect(0)
            served.reconnect(1)
        assert served.host.refusals.refusals == {}, "nor for what broke it: that is the method's fault"


def test_bytes_that_are_no_message_at_all_are_refused_and_counted(tmp_path: Path) -> None:
    with running(tmp_path) as server, grpc.insecure_channel(server.address, CLIENT_OPTIONS) as channel:
        metadata = (("authorization", f"Bearer {server.token(0)}"),)
        open_session = channel.stream_stream(SESSION, bytes, Frame.FromString)
        (answer,) = open_session(iter([b"\xff\xff\xff\xff"]), metadata=metadata, timeout=30)
        assert answer.head.refusal.reason == "what came is no frame of ours"
        assert server.shared.meters.refusals["wire"] == 1


def test_a_refusal_quotes_little_and_nothing_that_a_terminal_would_obey() -> None:
    kind = "\x1b]0;owned\x07" + "x" * 100_000
    header = json.dumps({"a": {"dtype": kind, "shape": [1], "data_offsets": [0, 4]}}, ensure_ascii=False).encode()
    with pytest.raises(WireError) as said:
        read_body(struct.pack("<Q", len(header)) + header + bytes(4))
    assert "\x1b" in str(said.value)
    reason = str(Refused(str(said.value)))
    assert reason.isprintable()
    assert len(reason) <= LONGEST_REASON


def test_only_the_owner_looks_into_a_journal_that_the_server_has_made(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        assert stat.S_IMODE(served.directory.stat().st_mode) == 0o700


def test_what_clients_answer_counts_as_much_as_what_they_train_when_a_snapshot_is_due(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        served.hello(0)
        served.ready(0)
        before = served.host.journal.unsaved_bytes
        served.push(0, answers={"much": "x" * 100_000})
        assert served.host.journal.unsaved_bytes > before + 100_000
        counted, settings = served.host.journal.unsaved_bytes, served.settings
    opened = open_service(tmp_path / "journal", settings)
    assert opened.journal.unsaved_bytes in (0, counted)  # the same after a restart, unless a snapshot was made
    opened.journal.close()


def test_a_journal_that_others_could_write_is_closed_to_them(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir(mode=0o777)
    (tmp_path / "journal").chmod(0o777)
    with hosted(tmp_path) as served:
        assert stat.S_IMODE(served.directory.stat().st_mode) == 0o755


def test_what_a_journal_holds_is_for_its_owner_only(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir(mode=0o755)
    with hosted(tmp_path) as served:
        some_events(served)
        served.host.journal.snapshot(served.host.service.save_state())
        made = {path.name: stat.S_IMODE(path.stat().st_mode) for path in served.directory.iterdir()}
    assert {"initial.safetensors", "journal.sqlite"} < set(made)
    by_umask = ("journal.sqlite", "status.json")
    assert {mode for name, mode in made.items() if not name.startswith(by_umask)} == {0o600}


def test_a_compressed_message_is_not_unpacked(tmp_path: Path) -> None:
    """Some versions of gRPC unpack it before they look how large it becomes."""
    with running(tmp_path) as server, grpc.insecure_channel(server.address, CLIENT_OPTIONS) as channel:
        call = channel.stream_unary(ENROL, Enrolment.SerializeToString, Enrolled.FromString)
        bomb = Enrolment(code="0" * 400_000, token_sha256="0" * 64)
        with pytest.raises(grpc.RpcError) as refused:
            call(iter([bomb]), timeout=30, compression=grpc.Compression.Gzip)
        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
