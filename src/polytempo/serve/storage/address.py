"""Where a service is kept: in its directory, or in a PostgreSQL database that the file ``store`` in it names. A machine
of such a service has a directory all the same, with its certificates and with what it notes for itself."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

from polytempo.core.disk.files import make_directory, write_shared
from polytempo.core.errors import UserError
from polytempo.serve.paths import DATABASE, JOURNAL, STORE
from polytempo_client.disk.reading import read_plain

SCHEMES = ("postgresql://", "postgres://")
SCHEMA = "polytempo"
"""The schema of a service whose address names none. Each service has one of its own."""
SHOWN = {"host", "port", "service"}
"""Parameters of an address that messages show. Others may be secret."""
ADDRESS_BYTES = 4096


@dataclass(frozen=True)
class PostgresAddress:
    """A schema in a database. As text it has no password."""

    conninfo: str = field(repr=False)
    """What PostgreSQL's client library is given."""
    schema: str
    shown: str

    def __str__(self) -> str:
        return self.shown

    @classmethod
    def parse(cls, text: str) -> "PostgresAddress":
        """``postgresql://USER@HOST/DATABASE?schema=NAME``, with whatever else libpq takes."""
        if not is_address(text):
            raise UserError(f"{text!r} is no address of a database. Expected postgresql://USER@HOST/DATABASE.")
        parts = urlsplit(text)
        parameters = parse_qsl(parts.query, keep_blank_values=True)
        schemas = [value for name, value in parameters if name == "schema"]
        schema = schemas[-1] if schemas else SCHEMA
        if not re.fullmatch("[a-z_][a-z0-9_]{0,62}", schema) or schema.startswith("pg_"):
            raise UserError(
                f"{schema!r} is no name for a service's schema. Expected lower-case letters, digits and underscores."
            )
        given = [(name, value) for name, value in parameters if name != "schema"]
        shown = [(name, value) for name, value in given if name in SHOWN] + [("schema", schema)]
        user, at, hosts = parts.netloc.rpartition("@")
        bare = user.partition(":")[0] + at + hosts
        return cls(_url(parts.netloc, parts.path, given), schema, _url(bare, parts.path, shown))


def _url(netloc: str, path: str, parameters: list[tuple[str, str]]) -> str:
    query = urlencode(parameters, safe="/")
    return f"postgresql://{netloc}{path}{'?' if query else ''}{query}"


def is_address(text: str) -> bool:
    """Does it name a database, rather than a directory?"""
    return text.startswith(SCHEMES)


def database_of(directory: Path) -> PostgresAddress | None:
    """The database that the service in this directory is kept in; None if it is kept in the directory itself."""
    path = directory / STORE
    try:
        text = read_plain(path, ADDRESS_BYTES).decode().strip()
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"Cannot read where the service is kept from {path}: {error}.") from None
    try:
        return PostgresAddress.parse(text)
    except UserError as error:
        raise UserError(f"{path} does not say where the service is kept: {error}") from None


def journal_database(journal: Path) -> PostgresAddress | None:
    """The database that the journal of this directory is kept in; None if it is kept in the directory itself."""
    return database_of(journal.parent) if journal.name == JOURNAL else None


def keep_in_database(directory: Path, address: str) -> None:
    """The same, where it is not known yet: a service that is kept elsewhere stays there."""
    known, given = database_of(directory), PostgresAddress.parse(address)
    if known is None and (directory / JOURNAL / DATABASE).exists():
        raise UserError(
            f"The service in {directory} is kept there. Nothing was changed. `polytempo move {directory} ADDRESS` "
            "moves it to a database; then start it without --store."
        )
    if known is None:
        note_database(directory, address)
    elif known != given:
        raise UserError(
            f"{directory / STORE} says that the service is kept in {known}, and --store {given}. Give another --dir, "
            "or leave --store out."
        )


def note_database(directory: Path, address: str) -> None:
    """From now on the service of this directory is kept in this database."""
    PostgresAddress.parse(address)
    make_directory(directory, 0o700)
    write_shared(directory / STORE, f"{address}\n".encode(), 0o600)
