"""Who may talk to the server: the roster that a running one goes by, and what changes it. The token alone says who
somebody is, so a client can act only as itself, and a client's token opens nothing that is an operator's."""

import logging
import os
import re
import secrets
import threading
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from polytempo.core.errors import UserError
from polytempo.core.files import write_bytes
from polytempo.serve.logs import log
from polytempo.serve.roster import (
    ACCESS,
    Code,
    OperatorPass,
    Pass,
    Quarantine,
    Role,
    Roster,
    changing,
    client_name,
    hash_of,
    utc_now,
    with_tables,
)

CODE_HOURS = 24.0
NAME = "[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"
UNKNOWN_CODE = "This code is not known: it was used, has expired, or never was one. Ask for a new one."
LONGEST_REASON = 500


class Access:
    """The roster of a running server, which is another one when the file changes."""

    def __init__(self, directory: Path, roster: Roster | None = None) -> None:
        self.directory = directory
        self._lock = threading.Lock()
        self._stamp = self._unreadable = self._look()
        self._unwritten: dict[int, Quarantine] = {}
        self._writing: threading.Thread | None = None
        self.roster = Roster.read(directory / ACCESS) if roster is None else roster

    def refresh(self) -> bool:
        """Read the file again if it has changed. One that cannot be read changes nothing and is tried again, so that
        nobody who was revoked stays because files ran out at that moment. Whether the roster is new."""
        with self._lock:
            stamp = self._look()
            if stamp == self._stamp:
                return False
            try:
                self._take(Roster.read(self.directory / ACCESS))
            except UserError as error:
                if stamp != self._unreadable:
                    reason = f"{error} Until it is mended, who could talk to the server before still can."
                    log("access unreadable", level=logging.ERROR, reason=reason)
                self._unreadable = stamp
                return False
            self._stamp = self._unreadable = stamp
            log("access read", **self.roster.sizes())
            return True

    def quarantine(self, client: int, reason: str) -> None:
        """Hear a client no more until it is released. The file is written by a thread, because whoever holds its lock
        may take long; what cannot be written holds until the server ends."""
        with self._lock:
            self._unwritten[client] = Quarantine(since=utc_now(), reason=reason[:LONGEST_REASON])
            self._take(self.roster)
        self._writing = threading.Thread(target=self._write_quarantine, args=(client,), daemon=True)
        self._writing.start()

    def settle(self, seconds: float) -> None:
        """Wait for what is being written, but not for long."""
        if self._writing is not None:
            self._writing.join(seconds)

    def _write_quarantine(self, client: int) -> None:
        try:
            with changing(self.directory) as known:
                known["quarantined"][client] = self._unwritten[client]
        except UserError as error:
            log("quarantine not kept", level=logging.ERROR, client=client, reason=str(error))
            return
        with self._lock:
            del self._unwritten[client]

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
    whose token was revoked gets a new one. Returns the new token files."""
    if clients < 1:
        raise UserError(f"Tokens for {clients} clients make no sense: give a number from 1 on.")
    expires = _in_days(days)
    with changing(directory) as known:
        missing = [client for client in range(clients) if client not in known["clients"]]
        for client in missing:
            known["clients"][client] = Pass(token=_new_token(client_token_file(directory, client)), expires=expires)
    return [client_token_file(directory, client) for client in missing]


def make_operator(directory: Path, name: str, role: Role, days: float | None = None) -> Path:
    """Make an operator's token, ``operator-NAME.token``; an earlier one of the same name counts no more."""
    if not re.fullmatch(NAME, name):
        raise UserError(f"{name!r} is no name for an operator: give letters, digits, hyphens, dots, underscores.")
    path, expires = _operator_token_file(directory, name), _in_days(days)
    with changing(directory) as known:
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
    directory: Path, code: str, token_hash: str, certified: Sequence[str] | None = None
) -> tuple[int, datetime | None]:
    """Use a one-time code up: from now on the token with this hash is the client's. The client, and when the token
    expires. The same again is answered alike; anything else is refused, also a code for another client than the names
    in the certificate that was shown."""
    if not re.fullmatch("[0-9a-f]{64}", token_hash):
        raise UserError("An enrolment needs the SHA-256 of a token, as 64 hexadecimal digits.")
    with changing(directory) as known:
        used = hash_of(code)
        for client, entry in known["clients"].items():
            if entry.code == used and entry.token == token_hash:
                return client, entry.expires
        found = known["codes"].pop(used, None)
        if found is None or found.expires <= utc_now():
            raise UserError(UNKNOWN_CODE)
        if certified is not None and client_name(found.client) not in certified:
            raise UserError(f"This code is for client {found.client}, and the certificate shown is not.")
        owners = {entry.token: who for name in ("operators", "clients") for who, entry in known[name].items()}
        if owners.get(token_hash, found.client) != found.client:
            raise UserError("This token is somebody else's already. Enrol with another --out, which makes a new one.")
        entry = Pass(token=token_hash, expires=_in_days(found.days), code=used)
        known["clients"][found.client] = entry
        return found.client, entry.expires


def release(directory: Path, client: int) -> None:
    """Let a client out of quarantine."""
    with changing(directory) as known:
        if known["quarantined"].pop(client, None) is None:
            raise UserError(f"Client {client} is not in quarantine: there is nothing to release.")


def read_token(path: Path) -> str:
    """A client's or an operator's own token, from the file it was given."""
    try:
        words = path.read_text("ascii").split()
    except OSError as error:
        raise UserError(
            f"Cannot read the token from {path}: {error.strerror}. "
            "Ask whoever runs the server for this client's client-N.token, or enrol with a code."
        ) from None
    except UnicodeDecodeError:
        words = []
    if len(words) != 1:
        raise UserError(f"{path} holds no token: expected one word, as in a client-N.token of `polytempo tokens`.")
    return words[0]


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
