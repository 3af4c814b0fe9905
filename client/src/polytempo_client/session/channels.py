"""Connections as gRPC makes them."""

import grpc

from polytempo_client.protocol.framing import CLIENT_OPTIONS

ONE_OF_SEVERAL = (
    ("grpc.min_reconnect_backoff_ms", 3_000),  # also the longest that it takes to connect
    ("grpc.keepalive_time_ms", 11_000),  # a server takes one in ten seconds
    ("grpc.keepalive_timeout_ms", 5_000),
)
"""Where there is another server to go to, one that has vanished without a word is given up sooner."""


def channel_to(address: str, credentials: grpc.ChannelCredentials | None, one_of_several: bool = False) -> grpc.Channel:
    """A connection of one's own; in plaintext without credentials."""
    options = tuple((dict(CLIENT_OPTIONS) | dict(ONE_OF_SEVERAL if one_of_several else ())).items())
    if credentials is None:
        return grpc.insecure_channel(address, options)
    return grpc.secure_channel(address, credentials, options)
