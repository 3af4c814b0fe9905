"""The documents of a service that is kept in a database: rows of a table. Whoever changes one tells all servers."""

from collections.abc import Iterator
from contextlib import contextmanager

from polytempo.serve.storage.address import PostgresAddress
from polytempo.serve.storage.database import connect, query, told_in_words
from polytempo.serve.storage.documents import DocumentChange, Documents
from polytempo.serve.storage.notices import tell
from polytempo.serve.storage.tables import make_tables


class TableDocuments(Documents):
    is_shared = True

    def __init__(self, address: PostgresAddress) -> None:
        self._address = address

    def title(self, name: str) -> str:
        return f"{name} in {self._address}"

    def read(self, name: str) -> bytes:
        with connect(self._address) as connection, told_in_words(self._address):
            ((there,),) = query(connection, "SELECT to_regclass('documents') IS NOT NULL")
            found = there and query(connection, "SELECT content FROM documents WHERE name = ?", (name,))
        if not found:
            raise FileNotFoundError(2, "it is missing", name)
        content: bytes = found[0][0]
        return content

    def stamp(self, name: str) -> object:
        with connect(self._address) as connection, told_in_words(self._address):
            return tuple(query(connection, "SELECT revision FROM documents WHERE name = ?", (name,)))

    @contextmanager
    def changing(self, name: str, make: bool = False) -> Iterator[DocumentChange]:
        if make:
            make_tables(self._address)
        with connect(self._address) as connection, told_in_words(self._address), connection.transaction():
            # A lock of the transaction's own: the row need not be there.
            query(connection, "SELECT pg_advisory_xact_lock(hashtext(?))", (f"{self._address.schema} {name}",))
            found = query(connection, "SELECT content FROM documents WHERE name = ?", (name,))
            change = DocumentChange(found[0][0] if found else None)
            yield change
            if change.written is not None:
                query(
                    connection,
                    "INSERT INTO documents (name, content, revision) VALUES (?, ?, 1) ON CONFLICT (name) DO UPDATE "
                    "SET content = excluded.content, revision = documents.revision + 1 RETURNING 1",
                    (name, change.written),
                )
                tell(connection, self._address)
