"""Erasing a client: its updates and answers leave the journal, the snapshots and the status, and it may not come back.

The new state becomes the journal's only one in a single step of the database. A crash before that leaves the service as
it was, but for the client's token. A crash after it leaves the new one; the same command again removes what is still in
the files."""

from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from polytempo.core.disk.files import hand_over_files
from polytempo.core.errors import PassingError, UserError
from polytempo.core.state import pack
from polytempo.serve.access.roster import changing
from polytempo.serve.access.tokens import client_token_file
from polytempo.serve.journal.journal import Journal
from polytempo.serve.journal.opening import Opened, open_service, settings_in
from polytempo.serve.paths import JOURNAL
from polytempo.serve.storage.errors import TakenError
from polytempo.strategies.base.strategy import Strategy
from polytempo.strategies.base.wrapper import innermost

ERASED = "erased"
"""The name of the record in the journal."""


@dataclass(frozen=True)
class Erased:
    """What has been done."""

    client: int
    event: int
    """Number that the erasure has among the events."""
    was_done: bool
    """Had the client been erased before? Then only the files were scrubbed again."""
    may_remember: bool = False
    """Is the strategy one's own, and has nobody written what it does to forget a client?"""


def erase(directory: Path, client: int, allowed: Collection[str] = ()) -> Erased:
    """Erase a client from the service in this directory, which must be stopped. ``allowed`` is that of
    ``settings_of``."""
    if not Journal.exists(directory / JOURNAL):
        raise UserError(f"{directory} holds no service. Nothing was changed. Expected the --dir of `polytempo serve`.")
    path = (directory / JOURNAL).resolve()  # it may be a link to another disk
    with _handed_over(path), _opened(path, directory, allowed) as opened:
        journal = opened.journal
        record = next((row for row in reversed(erasures(journal)) if row["client"] == client), None)
        known = client in opened.service.members
        if not known and record is None:
            raise UserError(f"The service in {directory} has never met client {client}. Nothing was changed.")
        _take_access(directory, client)
        if known or record is None:
            record = _begin_anew(opened, client)
        journal.scrub()
    return Erased(client, record["event"], not known, may_remember(innermost(opened.service.strategy)))


def may_remember(strategy: Strategy) -> bool:
    """Does a strategy of one's own leave ``forget`` to the class of Polytempo's that it is derived from? That one does
    not know what the strategy keeps of clients."""
    whose = next(cls for cls in type(strategy).__mro__ if "forget" in vars(cls))
    return _is_ours(whose) and not _is_ours(type(strategy))


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "polytempo"


def erasures(journal: Journal) -> list[dict[str, Any]]:
    """Who was erased from a journal, when, and as which event."""
    return list(journal.about.get(ERASED, ()))


@contextmanager
def _handed_over(journal: Path) -> Iterator[None]:
    """Whatever happens, the journal's files belong to the service's user afterwards."""
    try:
        yield
    except BaseException:
        with suppress(UserError):  # the error at hand says more
            _hand_over(journal)
        raise
    _hand_over(journal)


def _hand_over(journal: Path) -> None:
    try:
        hand_over_files(journal)
    except OSError as error:
        raise UserError(
            f"Cannot give the files in {journal} to whom it belongs: {error.strerror} ({error.filename}). Move away "
            "what is not the journal's there, and run the same command again."
        ) from None


@contextmanager
def _opened(journal: Path, directory: Path, allowed: Collection[str]) -> Iterator[Opened]:
    """The service on its journal, locked."""
    try:
        opened = open_service(journal, settings_in(journal, allowed))
    except TakenError:
        raise PassingError(
            f"The service in {directory} is running. Nothing was changed. Stop it, erase, and start it again."
        ) from None
    with closing(opened.journal):
        yield opened


def _take_access(directory: Path, client: int) -> None:
    """Before anything else: whoever has the token must not come back as the client that is erased."""
    with changing(directory) as known:
        known["clients"].pop(client, None)
        known["quarantined"].pop(client, None)
        known["codes"] = {sha: code for sha, code in known["codes"].items() if code.client != client}
    client_token_file(directory, client).unlink(missing_ok=True)


def _begin_anew(opened: Opened, client: int) -> dict[str, Any]:
    """Let the service without the client be all that its journal holds; the record of that."""
    journal, service = opened.journal, opened.service
    service.forget(client)
    made = journal.write_snapshot(journal.last + 1, *pack(service.save_state()))
    _hand_over(journal.directory)
    record = {"client": client, "event": made.number, "at": datetime.now(UTC).isoformat(timespec="seconds")}
    journal.begin_anew(made, {ERASED: [*erasures(journal), record]})
    return record
