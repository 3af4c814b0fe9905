"""Word that something in a service's database has changed. It comes with the commit; whoever misses it looks again soon
anyway."""

from collections.abc import Iterator

from polytempo.serve.storage.address import PostgresAddress
from polytempo.serve.storage.database import Connection, query


def tell(connection: Connection, address: PostgresAddress) -> None:
    query(connection, "SELECT pg_notify(?, '')", (_channel(address),))


def listen(connection: Connection, address: PostgresAddress) -> None:
    connection.execute(f"LISTEN {_channel(address)}".encode())


def wait(connection: Connection, seconds: float) -> bool:
    """Until there is word, or for so many seconds. Returns whether there was."""
    words: Iterator[object] = connection.notifies(timeout=seconds, stop_after=1)
    return any(True for _ in words)


def _channel(address: PostgresAddress) -> str:
    return f"polytempo_{address.schema}"[:63]
