"""Word that something in a service's database has changed. It comes with the commit; whoever misses it looks again soon
anyway."""

from collections.abc import Iterator

from polytempo.serve.storage.address import PostgresAddress
from polytempo.serve.storage.database import Connection, query

NOTIFY = "SELECT pg_notify(?, '')"


def tell(connection: Connection, address: PostgresAddress) -> None:
    """Of a document, or a wish."""
    query(connection, NOTIFY, (channel(address),))


def listen(connection: Connection, address: PostgresAddress, to_events: bool) -> None:
    """Be told from now on; with ``to_events``, of every append, too."""
    connection.execute(f"LISTEN {channel(address)}".encode())
    words = "LISTEN" if to_events else "UNLISTEN"
    connection.execute(f"{words} {channel_of_events(address)}".encode())


def wait(connection: Connection, seconds: float) -> bool:
    """Until there is word, or for so many seconds. Returns whether there was."""
    words: Iterator[object] = connection.notifies(timeout=seconds, stop_after=1)
    return any(True for _ in words)


def channel(address: PostgresAddress) -> str:
    return f"polytempo_{address.schema}"[:63]


def channel_of_events(address: PostgresAddress) -> str:
    return f"polytempo_events_{address.schema}"[:63]
