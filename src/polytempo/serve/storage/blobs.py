"""Large pieces of bytes in the database: bodies, snapshots, the first model, proxy sets. Each has a number of its own
and lies in parts of a few megabytes."""

import secrets
from collections.abc import Iterable, Iterator

from polytempo.serve.storage.database import Connection, DatabaseStatements, query

PART_BYTES = 4 << 20
Buffer = bytes | bytearray | memoryview


def new_blob() -> int:
    """A number that no other blob has: writers need not agree on it, nor wait for each other."""
    return secrets.randbits(62) + 1


def write_blob(statements: DatabaseStatements, blob: int, pieces: Iterable[Buffer]) -> None:
    for part, data in enumerate(parts_of(pieces)):
        statements.execute("INSERT INTO parts (blob, part, data) VALUES (?, ?, ?)", (blob, part, data))


def parts_of(pieces: Iterable[Buffer]) -> Iterator[bytes]:
    """The same bytes in parts of ``PART_BYTES``."""
    waiting, size = [], 0
    for piece in pieces:
        rest = memoryview(piece).cast("B")
        while len(rest):
            taken, rest = rest[: PART_BYTES - size], rest[PART_BYTES - size :]
            waiting.append(taken)
            size += len(taken)
            if size == PART_BYTES:
                yield b"".join(waiting)
                waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)


def read_blob(connection: Connection, blob: int) -> Iterator[bytes]:
    """Its parts, one after the other."""
    part = 0
    while found := query(connection, "SELECT data FROM parts WHERE blob = ? AND part = ?", (blob, part)):
        yield found[0][0]
        part += 1
