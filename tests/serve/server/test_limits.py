"""Limits: who sends too late, too slowly, too much or too often, or does not read, cannot hold the server's memory or
keep others from working."""

import socket
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from polytempo.serve.access.certs import make_certs
from polytempo.serve.access.tokens import make_tokens
from polytempo.serve.server.network.incoming import BusyError
from polytempo.serve.server.network.sessions import SESSIONS
from polytempo.serve.server.operations import Limits
from polytempo_client.protocol.wire_pb2 import Frame, Head, Hello, Pull, Push
from support.serving import Running, nudge, running, until
from support.strangers import Stranger, begun, stranger

pytestmark = pytest.mark.usefixtures("short_pauses")

MEGABYTE = 1 << 20


def others_work(server: Running, client: int = 1) -> None:
    with server.client(client) as other:
        other.run(lambda task: (nudge(task), 5), updates=1)


def ended_with(reason: str, visitor: Stranger, server: Running) -> None:
    """The session was refused, is over, and holds nothing."""
    heard, _ = visitor.end()
    assert heard[-1].HasField("refusal"), heard
    assert reason in heard[-1].refusal.reason
    until(lambda: not server.server._open)
    assert server.server._memory.taken == 0


# Too late, too slow, too much.


def test_who_does_not_say_hello_in_time_is_put_out(tmp_path: Path) -> None:
    with running(tmp_path, limits={"hello_seconds": 0.2}) as server:
        with stranger(server.address, server.token(0)) as silent:
            ended_with("nothing has come in time", silent, server)
        others_work(server)


def test_half_a_message_and_silence_ends_the_session(tmp_path: Path) -> None:
    with running(tmp_path, limits={"slow_seconds": 0.2}) as server:
        with stranger(server.address, server.token(0)) as slow:
            slow.hello()
            slow.send(begun(size=1000, sent=10))
            ended_with("bytes of a message have come in", slow, server)
        others_work(server)


@pytest.mark.parametrize("kind", [{"hello": Hello()}, {"push": Push()}])
def test_before_hello_nobody_may_send_much_and_only_a_push_has_a_body(tmp_path: Path, kind: dict[str, Any]) -> None:
    with running(tmp_path) as server, stranger(server.address, server.token(0)) as loud:
        loud.send(begun(size=1000, sent=10, **kind))
        ended_with("has 1000 bytes; expected at most 0 here", loud, server)


def test_a_pull_has_no_body(tmp_path: Path) -> None:
    with running(tmp_path) as server, stranger(server.address, server.token(0)) as loud:
        loud.hello()
        loud.send(begun(size=1000, sent=10, pull=Pull()))
        ended_with("a pull has 1000 bytes; expected at most 0 here", loud, server)


def test_a_message_that_is_larger_than_allowed_is_refused_before_it_has_come(tmp_path: Path) -> None:
    with running(tmp_path, limits={"message_bytes": 2000}) as server:
        with stranger(server.address, server.token(0)) as large:
            large.hello()
            large.send(begun(size=2001, sent=10))
            ended_with("a push has 2001 bytes; expected at most 2000 here", large, server)
        others_work(server, 0)


# Memory.


def test_who_comes_when_memory_is_used_up_is_told_to_come_again_and_all_is_given_back(tmp_path: Path) -> None:
    with running(tmp_path, limits={"memory_bytes": MEGABYTE}) as server:
        with stranger(server.address, server.token(0)) as first, stranger(server.address, server.token(1)) as second:
            first.hello()
            second.hello()
            first.send(begun(size=2 * MEGABYTE, sent=200_000), *[Frame(data=bytes(175_000))] * 4)
            until(lambda: server.server._memory.taken > 900_000)
            second.send(begun(size=2 * MEGABYTE, sent=200_000))
            heard, _ = second.end()
            assert heard[-1].refusal.again
            assert "no memory left" in heard[-1].refusal.reason
            until(lambda: len(server.server._open) == 1)
            assert 900_000 < server.server._memory.taken < MEGABYTE
        until(lambda: not server.server._open)
        assert server.server._memory.taken == 0


def test_a_client_that_finds_no_memory_comes_again_and_its_update_is_not_lost(tmp_path: Path) -> None:
    with running(tmp_path, limits={"memory_bytes": MEGABYTE}) as server, server.client(1) as client:
        task = client.task(30)
        with ExitStack() as holding:
            holder = holding.enter_context(stranger(server.address, server.token(0)))
            holder.hello()
            holder.send(begun(size=2 * MEGABYTE, sent=200_000), *[Frame(data=bytes(175_000))] * 4)
            until(lambda: server.server._memory.taken > 900_000)
            told = server.server._memory.take

            def take(*given: int, **more: int) -> None:
                try:
                    told(*given, **more)
                except BusyError:
                    holder.call.cancel()  # the memory is free when the client comes again
                    raise

            server.server._memory.take = take  # type: ignore[method-assign]
            answers = {"much": torch.zeros(50_000)}
            client.push(task, nudge(task), samples=5, answers=answers, timeout=30)
        assert server.host.service.members[1].updates == 1
        until(lambda: server.server._memory.taken == 0)


def test_what_is_waiting_for_an_answer_counts_until_it_has_one(tmp_path: Path) -> None:
    with running(tmp_path) as server, stranger(server.address, server.token(0)) as visitor:
        visitor.hello()
        for _ in range(5):
            number = visitor.say(Head(push=Push(task=99)), [b"x" * 1000])
            assert visitor.read().answers == number
        until(lambda: server.server._memory.taken == 0)
        until(lambda: [session.waiting for session in server.server._open] == [{}])


# Too many.


def test_who_is_one_session_too_many_waits_until_there_is_room(tmp_path: Path) -> None:
    with running(tmp_path, limits={"sessions": 1}) as server, ExitStack() as sessions:
        sessions.enter_context(server.client(0)).wait_for_welcome(30)
        other = sessions.enter_context(server.client(1))
        until(lambda: server.shared.meters.refusals["session"])
        assert other.number is None
        sessions.enter_context(stranger(server.address, server.token(2)))
        server.shared.operations = server.operations.model_copy(update={"limits": Limits()})
        other.wait_for_welcome(30)


def test_who_is_one_client_too_many_is_told_and_a_client_that_is_there_may_reconnect(tmp_path: Path) -> None:
    with running(tmp_path, limits={"clients": 1}) as server, stranger(server.address, server.token(0)) as first:
        first.hello()
        with stranger(server.address, server.token(1)) as second:
            _, code = second.end()
            assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert second.call.details() == "the server has too many clients"
        with stranger(server.address, server.token(0)) as again:
            again.hello()


def test_one_token_opens_so_many_sessions_and_no_more(tmp_path: Path) -> None:
    with running(tmp_path) as server, ExitStack() as sessions:
        for _ in range(SESSIONS):  # they have not said hello: none has replaced another
            sessions.enter_context(stranger(server.address, server.token(0)))
        until(lambda: len(server.server._open) == SESSIONS)
        with stranger(server.address, server.token(0)) as further:
            assert further.end() == ([], grpc.StatusCode.RESOURCE_EXHAUSTED)
        others_work(server)
    assert server.server._calls == {}


# Too often.


def test_who_asks_too_often_is_delayed_and_loses_nothing(tmp_path: Path) -> None:
    with running(tmp_path, limits={"requests_per_second": 20.0}) as server:
        began = time.monotonic()  # before the client says hello: a busy machine makes it longer, never shorter
        with server.client(0) as client:
            client.run(lambda task: (nudge(task), 5), updates=28)  # with hello and ready 30 requests, 10 of them late
            assert time.monotonic() - began > 0.45
            assert server.host.service.members[0].updates == 28
            assert not server.shared.meters.refusals


# Who does not read.


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A model that does not fit what gRPC takes ahead of a reader."""
    init = tmp_path / "large.safetensors"
    save_file({"weight": np.zeros(4 << 20, np.float32)}, init)
    return init


UNREAD: dict[str, Any] = {"limits": {"unread_seconds": 0.3}, "norm_bound": 1e6}


def put_out_for_not_reading(server: Running, deaf: Stranger) -> None:
    deaf.hello()
    deaf.say(Head(pull=Pull()))
    until(lambda: not server.server._open)
    assert server.server._memory.taken == 0


def test_who_does_not_read_is_put_out_and_holds_no_memory(tmp_path: Path, large: Path) -> None:
    with running(tmp_path, init=large, **UNREAD) as server, stranger(server.address, server.token(0)) as deaf:
        put_out_for_not_reading(server, deaf)
        others_work(server)
        assert deaf.end()[1] == grpc.StatusCode.UNAVAILABLE


def test_sessions_whose_end_nobody_reads_count_against_their_own_token_until_they_are_gone(
    tmp_path: Path, large: Path
) -> None:
    with running(tmp_path, init=large, **UNREAD) as server:
        with ExitStack() as sessions:
            for _ in range(SESSIONS):
                put_out_for_not_reading(server, sessions.enter_context(stranger(server.address, server.token(0))))
            with stranger(server.address, server.token(0)) as further:
                assert further.end() == ([], grpc.StatusCode.RESOURCE_EXHAUSTED)
            others_work(server)
        until(lambda: not server.server._calls)
        others_work(server, 0)


# Who never speaks.


@pytest.mark.parametrize("security", ["plaintext", "tls"])
@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"])
def test_connections_that_never_open_a_session_do_not_keep_others_from_working(
    tmp_path: Path, security: Any, said: bytes
) -> None:
    make_certs(tmp_path, [])
    make_tokens(tmp_path, 2)
    with running(tmp_path, security=security) as server, ExitStack() as connections:
        for _ in range(100):
            one = connections.enter_context(socket.create_connection(("127.0.0.1", server.port), 30))
            one.sendall(said)
        others_work(server)
        until(lambda: server.server._memory.taken == 0)
