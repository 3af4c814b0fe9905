"""The tables of a service in its schema, made and brought up to date by whoever comes first."""

from polytempo.serve.storage.address import PostgresAddress
from polytempo.serve.storage.database import Connection, connect, query, told_in_words
from polytempo.serve.storage.errors import JournalError

MIGRATIONS = (
    """
    CREATE TABLE about (name text PRIMARY KEY, value text NOT NULL);
    CREATE TABLE events (
        number bigint PRIMARY KEY, batch bigint NOT NULL, at float8 NOT NULL, wall float8 NOT NULL, kind text NOT NULL,
        client bigint NOT NULL, detail text NOT NULL, body bytea, segment bigint, begins bigint, size bigint NOT NULL,
        crc bigint NOT NULL, void text);
    ALTER TABLE events ALTER body SET STORAGE EXTERNAL;
    CREATE TABLE outcomes (number bigint PRIMARY KEY, outcome bigint NOT NULL);
    CREATE TABLE snapshots (
        number bigint PRIMARY KEY, size bigint NOT NULL, crc bigint NOT NULL, blob bigint NOT NULL, digest text);
    CREATE TABLE files (name text PRIMARY KEY, blob bigint NOT NULL);
    CREATE TABLE parts (blob bigint, part int, data bytea NOT NULL, PRIMARY KEY (blob, part));
    ALTER TABLE parts ALTER data SET STORAGE EXTERNAL;
    CREATE TABLE documents (name text PRIMARY KEY, content bytea NOT NULL, revision bigint NOT NULL);
    CREATE TABLE lease (
        one boolean PRIMARY KEY DEFAULT true CHECK (one), epoch bigint NOT NULL, holder text NOT NULL,
        expires timestamptz NOT NULL, last bigint NOT NULL, confirmed bigint NOT NULL, asked text NOT NULL)
        WITH (fillfactor = 10);
    INSERT INTO lease (epoch, holder, expires, last, confirmed, asked) VALUES (0, '', '-infinity', 0, 0, '');
    CREATE TABLE servers (name text PRIMARY KEY, told text NOT NULL, seen timestamptz NOT NULL);
    """,
)
"""How each version is made of the one before."""
VERSIONS = "polytempo_version"
"""The table that says which version the others have."""


def make_tables(address: PostgresAddress) -> None:
    """Make the schema and its tables if they are not there, and bring them up to date."""
    with connect(address) as connection, told_in_words(address):
        if _version(connection, address) == len(MIGRATIONS):
            return
        with connection.transaction():
            # One at a time: several servers may begin at once.
            connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (f"polytempo {address.schema}",))
            version = _version(connection, address)
            if version is None:
                if not _has_schema(connection, address):
                    connection.execute(f"CREATE SCHEMA {address.schema}".encode())
                connection.execute(f"CREATE TABLE {VERSIONS} (version int NOT NULL)".encode())
                connection.execute(f"INSERT INTO {VERSIONS} VALUES (0)".encode())
            for migration in MIGRATIONS[version or 0 :]:
                connection.execute(migration.encode())
            connection.execute(f"UPDATE {VERSIONS} SET version = {len(MIGRATIONS)}".encode())


def has_tables(address: PostgresAddress) -> bool:
    """Does the schema have the tables of a service?"""
    with connect(address) as connection, told_in_words(address):
        return _version(connection, address) is not None


def _version(connection: Connection, address: PostgresAddress) -> int | None:
    """Of the tables; None if there are none. A schema of somebody else's, or of a newer Polytempo, is an error."""
    tables = {
        name
        for (name,) in query(
            connection, "SELECT tablename::text FROM pg_tables WHERE schemaname = ?", (address.schema,)
        )
    }
    if not tables:
        return None
    if VERSIONS not in tables:
        raise JournalError(
            f"The schema of {address} holds something else than a service of Polytempo. Nothing was changed. Choose "
            "another one with ?schema=NAME in the address."
        )
    ((version,),) = query(connection, f"SELECT version FROM {VERSIONS}")
    if version > len(MIGRATIONS):
        raise JournalError(
            f"The tables of {address} were made by a newer version of Polytempo (version {version}, and this one knows "
            f"{len(MIGRATIONS)}). Nothing was changed. Install the newer version."
        )
    return int(version)


def _has_schema(connection: Connection, address: PostgresAddress) -> bool:
    return bool(query(connection, "SELECT 1 FROM pg_namespace WHERE nspname = ?", (address.schema,)))
