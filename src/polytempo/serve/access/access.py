"""Who may talk to the server: the roster that a running one goes by, and what changes it. The token alone says who
somebody is, so a client can act only as itself, and a client's token opens nothing that is an operator's."""

import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from polytempo.core.errors import UserError
from polytempo.core.files import write_bytes
from polytempo.serve.access.credentials import hash_of
from polytempo.serve.access.roster import (
    ACCESS,
    LONGEST_REASON,
    Code,
    OperatorPass,
    Pass,
    Quarantine,
    Role,
    Roster,
    changes,
    changing,
    client_name,
    utc_now,
    with_tables,
)
from polytempo.serve.logs import log

CODE_HOURS = 24.0
NAME = "[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"
UNKNOWN_CODE = "This code is not known: it was used, has expired, or never was one. Ask for a new one."
BLIND_AFTER = 5.0
"""Seconds that the file may be unreadable before nobody new is let in."""
NEVER = (-1, -1, -1)
"""The stamp of no file."""
WRITE_AGAIN = 5.0
"""Seconds until a quarantine that could not be written is tried again."""


class EnrolmentError(UserError):
    """What a stranger may know about why it is not let in."""


class Access:
    """The roster of a running server, which is another one when the file changes."""

    def __init__(
        self, directory: Path, roster: Roster | None = None, seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self.directory = directory
        self.problem: str | None = None
        """Why the file cannot be read, if it cannot: who was revoked since is not known."""
        self._seconds = seconds
        self._unreadable_since = 0.0
        self._lock = threading.Lock()
        self._stamp: tuple[int, int, int] | None = self._look()
        self._unwritten: dict[int, Quarantine] = {}
        self._writing: threading.Thread | None = None
        self._written_at = 0.0
        self.roster = Roster.read(directory / ACCESS) if roster is None else roster

    @property
    def blind(self) -> bool:
        """Has the file been unreadable for so long that nobody new should be let in?"""
        return self.problem is not None and self._seconds() > self._unreadable_since + BLIND_AFTER

    def refresh(self) -> bool:
        """Read the file again if it has changed. One that cannot be read changes nothing and is tried again, so that
        nobody who was revoked stays because files ran out at that moment. Whether the roster is new."""
        self._write_again()
        with self._lock:
            stamp = self._look()
            if stamp == self._stamp and self.problem is None:
                return False
            try:
                found = Roster.read(self.directory / ACCESS)
            except UserError as error:
                self._cannot_read(str(error))
                return False
            if self.problem is not None:
                log("access readable again", level=logging.WARNING)
            self.problem, self._stamp = None, stamp
            differences = changes(self.roster, found)
            self._take(found)
            if differences:
                log("access changed", level=logging.WARNING, **differences)
            return bool(differences)

    def _cannot_read(self, reason: str) -> None:
        if self.problem is None:
            self._unreadable_since = self._seconds()
        if reason != self.problem:
            until = "Until it is mended, open sessions go on and nobody new is let in."
            log("access unreadable", level=logging.ERROR, reason=f"{reason} {until}")
        self.problem = reason

    def quarantine(self, client: int, reason: str) -> None:
        """Hear a client no more until it is released. The file is written by a thread, because whoever holds its lock
        may take long; what cannot be written holds all the same, and is tried again."""
        with self._lock:
            self._unwritten[client] = Quarantine(since=utc_now(), reason=reason[:LONGEST_REASON])
            self._take(self.roster)
            self._written_at = 0.0
        self._write_again()

    def settle(self, seconds: float) -> None:
        """Wait for what is being written, but not for long."""
        if self._writing is not None:
            self._writing.join(seconds)
        self._write_again()
        if self._writing is not None:
            self._writing.join(seconds)

    def _write_again(self) -> None:
        """What is not in the file yet, if nobody is writing and the last try is a while ago."""
        with self._lock:
            busy = self._writing is not None and self._writing.is_alive()
            if not self._unwritten or busy or self._seconds() < self._written_at + WRITE_AGAIN:
                return
            self._written_at = self._seconds()
            self._writing = threading.Thread(target=self._write_quarantines, daemon=True)
            self._writing.start()

    def _write_quarantines(self) -> None:
        waiting = dict(self._unwritten)
        try:
            with changing(self.directory) as known:
                known["quarantined"].update(waiting)
        except UserError as error:
            log("quarantine not kept", level=logging.ERROR, clients=list(waiting), reason=str(error))
            return
        with self._lock:
            for client, entry in waiting.items():
                if self._unwritten.get(client) is entry:
                    del self._unwritten[client]
            self._stamp = NEVER  # somebody may have released it already
            self._written_at = 0.0

    def _take(self, roster: Roster) -> None:
        self.roster = with_tables(roster, quarantined={**roster.quarantined, **self._unwritten})

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self.directory / ACCESS)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size


def make_tokens(directory: Path, clients: int, days: float | None = None) -> list[Path]:
    """Make a token for each of the clients 0 .. ``clients`` - 1 that has none, valid for so many days (default: for
    ever): its hash goes to ``access.json``, the token to ``client-N.token``. Tokens made earlier stay valid; a client
    whose token was revoked or has expired gets a new one. Returns the new token files."""
    if clients < 1:
        raise UserError(f"Tokens for {clients} clients make no sense: give a number from 1 on.")
    expires = _in_days(days)
    with changing(directory, make=True) as known:
        valid = {client for client, entry in known["clients"].items() if entry.valid(time.time())}
        missing = [client for client in range(clients) if client not in valid]
        for client in missing:
            known["clients"][client] = Pass(token=_new_token(client_token_file(directory, client)), expires=expires)
    return [client_token_file(directory, client) for client in missing]


def make_operator(directory: Path, name: str, role: Role | None = None, days: float | None = None) -> Path:
    """Make an operator's token, ``operator-NAME.token``; an earlier one of the same name counts no more. The role is
    that of the earlier one, or viewer, if none is given."""
    if not re.fullmatch(NAME, name):
        raise UserError(f"{name!r} is no name for an operator: give letters, digits, hyphens, dots, underscores.")
    path, expires = _operator_token_file(directory, name), _in_days(days)
    with changing(directory, make=True) as known:
        before = known["operators"].get(name)
        role = role or ("viewer" if before is None else before.role)
        known["operators"][name] = OperatorPass(token=_new_token(path), expires=expires, role=role)
    return path


def revoke_client(directory: Path, client: int) -> None:
    """Remove a client's token and its codes: whoever holds them is a stranger from now on."""
    with changing(directory) as known:
        codes = {sha: code for sha, code in known["codes"].items() if code.client != client}
        if client not in known["clients"] and len(codes) == len(known["codes"]):
            raise UserError(f"Client {client} has no token in {directory / ACCESS}: there is nothing to revoke.")
        known["clients"].pop(client, None)
        known["codes"] = codes
    client_token_file(directory, client).unlink(missing_ok=True)


def revoke_operator(directory: Path, name: str) -> None:
    with changing(directory) as known:
        if known["operators"].pop(name, None) is None:
            raise UserError(f"There is no operator {name!r} in {directory / ACCESS}: there is nothing to revoke.")
    _operator_token_file(directory, name).unlink(missing_ok=True)


def make_code(directory: Path, client: int, hours: float = CODE_HOURS, days: float | None = None) -> str:
    """A one-time code with which a client gets its token (``polytempo enrol``), valid for so many hours; the token is
    valid for so many days (default: for ever). Earlier codes of the client count no more; its token does until it
    enrols anew."""
    if not 0 <= client < 10**9:
        raise UserError(f"{client} is no number of a client: give one from 0 on.")
    if not 0 < hours <= 8760:
        raise UserError(f"A code for {hours} hours is not possible: give more than 0, and at most a year.")
    _in_days(days)  # is it possible?
    now, code = utc_now(), secrets.token_urlsafe(24)
    expires = now + timedelta(hours=hours)
    with changing(directory) as known:
        kept = {sha: other for sha, other in known["codes"].items() if other.client != client and other.expires > now}
        known["codes"] = kept | {hash_of(code): Code(client=client, expires=expires, days=days)}
    return code


def enrol(
    directory: Path,
    code: str,
    token_hash: str,
    certified: Sequence[str] | None = None,
    most_days: float | None = None,
) -> tuple[int, datetime | None]:
    """Use a one-time code up: from now on the token with this hash is the client's, for as long as the code says, and
    at most ``most_days``. The client, and when the token expires. The same again is answered alike; anything else is
    refused, also a code for another client than the names in the certificate that was shown."""
    if not re.fullmatch("[0-9a-f]{64}", token_hash):
        raise EnrolmentError("An enrolment needs the SHA-256 of a token, as 64 hexadecimal digits.")
    with changing(directory) as known:
        used = hash_of(code)
        for client, entry in known["clients"].items():
            if entry.code == used and entry.token == token_hash:
                return client, entry.expires
        found = known["codes"].pop(used, None)
        if found is None or found.expires <= utc_now():
            raise EnrolmentError(UNKNOWN_CODE)
        if certified is not None and tuple(certified) != (client_name(found.client),):
            raise EnrolmentError(f"This code is for client {found.client}, and the certificate shown is not.")
        owners = {entry.token: who for name in ("operators", "clients") for who, entry in known[name].items()}
        if owners.get(token_hash, found.client) != found.client:
            raise EnrolmentError(
                "This token is somebody else's already. Enrol with another --out, which makes a new one."
            )
        days = min((limit for limit in (found.days, most_days) if limit is not None), default=None)
        entry = Pass(token=token_hash, expires=_in_days(days), code=used)
        known["clients"][found.client] = entry
        return found.client, entry.expires


def release(directory: Path, client: int) -> None:
    """Let a client out of quarantine."""
    with changing(directory) as known:
        if known["quarantined"].pop(client, None) is None:
            raise UserError(f"Client {client} is not in quarantine: there is nothing to release.")


def client_token_file(directory: Path, client: int) -> Path:
    return directory / f"{client_name(client)}.token"


def _operator_token_file(directory: Path, name: str) -> Path:
    return directory / f"operator-{name}.token"


def _new_token(path: Path) -> str:
    """Write a new token there; its hash. The roster comes later: a crash before it leaves a token that counts for
    nothing and is made anew next time."""
    token = secrets.token_urlsafe(32)
    write_bytes(path, f"{token}\n".encode(), 0o600)
    return hash_of(token)


def _in_days(days: float | None) -> datetime | None:
    if days is not None and not 0 < days <= 36500:
        raise UserError(f"A token for {days} days is not possible: give more than 0, and at most 36500.")
    return None if days is None else utc_now() + timedelta(days=days)
