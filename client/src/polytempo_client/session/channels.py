"""Connections as gRPC makes them."""

import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import grpc

from polytempo_client.protocol.framing import CLIENT_OPTIONS, SESSION
from polytempo_client.protocol.wire_pb2 import Frame

ONE_OF_SEVERAL = (
    ("grpc.min_reconnect_backoff_ms", 3_000),  # also the longest that it takes to connect
    ("grpc.keepalive_time_ms", 11_000),  # a server takes one in ten seconds
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # otherwise a minute, whatever the line above says
)
"""Where there is another server to go to, one that has vanished without a word is given up sooner."""


HELPER_SECONDS = 1.0
"""That threads of gRPC's may take to end with their call."""
_BEGINNING = threading.Lock()
"""One call begins at a time, so that the threads of another client's are not taken for its own."""


def channel_to(address: str, credentials: grpc.ChannelCredentials | None, one_of_several: bool = False) -> grpc.Channel:
    """A connection of one's own; in plaintext without credentials."""
    options = tuple((dict(CLIENT_OPTIONS) | dict(ONE_OF_SEVERAL if one_of_several else ())).items())
    if credentials is None:
        return grpc.insecure_channel(address, options)
    return grpc.secure_channel(address, credentials, options)


def open_session(
    channel: grpc.Channel, sent: Iterator[Frame], token: str, seconds: float | None = None
) -> tuple[Any, set[threading.Thread]]:
    """A call of this token's client, which ends after so many seconds, and the threads that gRPC began for it. One that
    is still about when Python ends may take the process with it, so whoever ends the call waits for them."""
    method = channel.stream_stream(SESSION, Frame.SerializeToString, Frame.FromString)
    with _BEGINNING:
        before = set(threading.enumerate())
        call = method(sent, timeout=seconds, metadata=(("authorization", f"Bearer {token}"),))
        return call, {thread for thread in set(threading.enumerate()) - before if thread.daemon}


def wait_for_helpers(helpers: Iterable[threading.Thread]) -> None:
    """Until these threads have ended, whose call has. One may be another's that began at the same moment."""
    end = time.monotonic() + HELPER_SECONDS
    for helper in helpers:
        if helper.is_alive():
            helper.join(max(0.0, end - time.monotonic()))
