"""Who may talk to the server. Each client and each operator has one secret token; the server keeps only the tokens'
hashes, in ``access.json``, with one-time codes for enrolment and the clients in quarantine. The token alone says who
somebody is, so a client can act only as itself, and a client's token opens nothing that is an operator's."""

import fcntl
import hashlib
import json
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    StringConstraints,
    ValidationError,
    model_validator,
)

from polytempo.core.errors import UserError
from polytempo.core.files import write_bytes
from polytempo.core.validation import refusal
from polytempo.serve.logs import log

ACCESS = "access.json"
CODE_HOURS = 24.0
NAME = "[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"
LONGEST_REASON = 500
UNKNOWN_CODE = "This code is not known: it was used, has expired, or never was one. Ask for a new one."

Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
ClientNumber = Annotated[int, Field(ge=0, lt=10**9)]
Role = Literal["admin", "viewer"]
K = TypeVar("K")


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Pass(_Entry):
    """A token: its hash, and until when it counts."""

    token: Sha256
    expires: AwareDatetime | None = None
    code: Sha256 | None = None
    """The one-time code that it was enrolled with: the same enrolment again is no new one."""

    def valid(self, now: float) -> bool:
        return self.expires is None or now < self.expires.timestamp()


class OperatorPass(Pass):
    """The token of somebody who may look (viewer), or look and act (admin)."""

    role: Role


class Operator(NamedTuple):
    """Whose token it was."""

    name: str
    role: Role


class Code(_Entry):
    """A one-time code for a client's enrolment, known by its hash."""

    client: ClientNumber
    expires: AwareDatetime
    days: float | None = Field(default=None, gt=0)
    """How long the token counts that it becomes."""


class Quarantine(_Entry):
    """Why a client is not heard any more."""

    since: AwareDatetime
    reason: str


class Roster(_Entry):
    """What ``access.json`` says."""

    clients: dict[ClientNumber, Pass] = {}
    operators: dict[str, OperatorPass] = {}
    codes: dict[Sha256, Code] = {}
    quarantined: dict[ClientNumber, Quarantine] = {}
    _clients: dict[str, int] = PrivateAttr(default_factory=dict)
    _operators: dict[str, str] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _one_owner_per_token(self) -> "Roster":
        tokens = [entry.token for entry in (*self.clients.values(), *self.operators.values())]
        if len(set(tokens)) < len(tokens):
            raise ValueError("two of them have the same token")
        return self

    def model_post_init(self, _: Any) -> None:
        self._clients = {entry.token: client for client, entry in self.clients.items()}
        self._operators = {entry.token: name for name, entry in self.operators.items()}

    @classmethod
    def read(cls, path: Path) -> "Roster":
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            raise UserError(f"There is no {path}. Make it with `polytempo tokens {path.parent} --clients N`.") from None
        except OSError as error:
            raise UserError(f"Cannot read who may talk to the server from {path}: {error.strerror}.") from None
        except ValidationError as error:
            advice = (
                " Restore it from a copy, or delete it and make new tokens for all clients with `polytempo tokens`."
            )
            raise refusal(error, f"{path} is damaged", advice) from None

    def client_of(self, token: str) -> int | None:
        """The client whose token this is and still counts; None if it is nobody's."""
        client = self._clients.get(hash_of(token))
        return client if client is not None and self.clients[client].valid(time.time()) else None

    def operator_of(self, token: str) -> Operator | None:
        """The operator whose token this is and still counts."""
        name = self._operators.get(hash_of(token))
        if name is None or not self.operators[name].valid(time.time()):
            return None
        return Operator(name, self.operators[name].role)

    def enrolee_of(self, code: str, token_hash: str) -> int | None:
        """The client that this code is for, if nobody has used it but for this very token."""
        used = hash_of(code)
        if used in self.codes:
            return self.codes[used].client
        client = self._clients.get(token_hash)
        return client if client is not None and self.clients[client].code == used else None

    def objection(self, client: int, token_hash: str) -> str | None:
        """Why a session that was begun with this token may not go on; None if it may."""
        entry = self.clients.get(client)
        if client in self.quarantined:
            return in_quarantine(self.quarantined[client])
        if entry is None or entry.token != token_hash:
            return "the token was revoked"
        return None if entry.valid(time.time()) else "the token has expired"


def in_quarantine(quarantine: Quarantine) -> str:
    return (
        f"this client is in quarantine since {quarantine.since:%Y-%m-%d %H:%M} UTC ({quarantine.reason}): ask whoever "
        "runs the server"
    )


class Access:
    """The roster of a running server, which is another one when the file changes."""

    def __init__(self, directory: Path, roster: Roster | None = None) -> None:
        self.directory = directory
        self._lock = threading.Lock()
        self._stamp = self._unreadable = self._look()
        self.roster = Roster.read(directory / ACCESS) if roster is None else roster

    def refresh(self) -> bool:
        """Read the file again if it has changed. One that cannot be read changes nothing and is tried again, so that
        nobody who was revoked stays because files ran out at that moment. Whether the roster is new."""
        with self._lock:
            stamp = self._look()
            if stamp == self._stamp:
                return False
            try:
                self.roster = Roster.read(self.directory / ACCESS)
            except UserError as error:
                if stamp != self._unreadable:
                    log("access unreadable", level=logging.ERROR, reason=str(error))
                self._unreadable = stamp
                return False
            self._stamp = self._unreadable = stamp
            return True

    def quarantine(self, client: int, reason: str) -> None:
        """Hear a client no more until it is released. What cannot be written holds until the file changes."""
        entry = Quarantine(since=_now(), reason=reason[:LONGEST_REASON])
        with self._lock:  # or a roster that is being read at this moment would be undone
            self.roster = _with(self.roster, quarantined={**self.roster.quarantined, client: entry})
        try:
            with _changing(self.directory) as known:
                known["quarantined"][client] = entry
        except (UserError, OSError) as error:
            log("quarantine not kept", level=logging.ERROR, client=client, reason=str(error))

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self.directory / ACCESS)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size


# Changing the roster. Several programs may do so at once.


def make_tokens(directory: Path, clients: int, days: float | None = None) -> list[Path]:
    """Make a token for each of the clients 0 .. ``clients`` - 1 that has none, valid for so many days (default: for
    ever): its hash goes to ``access.json``, the token to ``client-N.token``. Tokens made earlier stay valid; a client
    whose token was revoked gets a new one. Returns the new token files."""
    if clients < 1:
        raise UserError(f"Tokens for {clients} clients make no sense: give a number from 1 on.")
    expires = _in_days(days)
    with _changing(directory) as known:
        missing = [client for client in range(clients) if client not in known["clients"]]
        for client in missing:
            known["clients"][client] = Pass(token=_new_token(client_token_file(directory, client)), expires=expires)
    return [client_token_file(directory, client) for client in missing]


def make_operator(directory: Path, name: str, role: Role, days: float | None = None) -> Path:
    """Make an operator's token, ``operator-NAME.token``; an earlier one of the same name counts no more."""
    if not re.fullmatch(NAME, name):
        raise UserError(f"{name!r} is no name for an operator: give letters, digits, hyphens, dots, underscores.")
    path, expires = _operator_token_file(directory, name), _in_days(days)
    with _changing(directory) as known:
        known["operators"][name] = OperatorPass(token=_new_token(path), expires=expires, role=role)
    return path


def revoke_client(directory: Path, client: int) -> None:
    """Remove a client's token and its codes: whoever holds them is a stranger from now on."""
    with _changing(directory) as known:
        codes = {sha: code for sha, code in known["codes"].items() if code.client != client}
        if client not in known["clients"] and len(codes) == len(known["codes"]):
            raise UserError(f"Client {client} has no token in {directory / ACCESS}: there is nothing to revoke.")
        known["clients"].pop(client, None)
        known["codes"] = codes
    client_token_file(directory, client).unlink(missing_ok=True)


def revoke_operator(directory: Path, name: str) -> None:
    with _changing(directory) as known:
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
    now, code = _now(), secrets.token_urlsafe(24)
    expires = now + timedelta(hours=hours)
    with _changing(directory) as known:
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
    with _changing(directory) as known:
        used = hash_of(code)
        for client, entry in known["clients"].items():
            if entry.code == used and entry.token == token_hash:
                return client, entry.expires
        found = known["codes"].pop(used, None)
        if found is None or found.expires <= _now():
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
    with _changing(directory) as known:
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


def hash_of(token: str) -> str:
    # A token is 256 random bits, which nobody can guess from a hash however fast; salts and slow hashes are for
    # passwords. A token from the network may hold anything a str can, hence surrogatepass.
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def client_name(client: int) -> str:
    """Of its files, and the common name of its certificate."""
    return f"client-{client}"


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


@contextmanager
def _changing(directory: Path) -> Iterator[dict[str, Any]]:
    """The roster's tables, to be changed; they are written when that is done, in one step, while nobody else does."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(directory / f".{ACCESS}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            path = directory / ACCESS
            roster = Roster.read(path) if os.path.lexists(path) else Roster()
            tables = {name: dict(getattr(roster, name)) for name in Roster.model_fields}
            yield tables
            changed = _with(roster, **tables)
            if changed != roster:
                data = json.dumps(changed.model_dump(mode="json", exclude_none=True), indent=1) + "\n"
                write_bytes(path, data.encode(), 0o600)
        finally:
            os.close(lock)
    except OSError as error:
        raise UserError(f"Cannot write {directory / ACCESS}: {error.strerror}. Choose another directory.") from None


def _with(roster: Roster, **tables: Mapping[Any, Any]) -> Roster:
    kept = {name: getattr(roster, name) for name in Roster.model_fields}
    return Roster(**{name: _in_order(table) for name, table in (kept | tables).items()})


def _in_order(table: Mapping[K, Any]) -> dict[K, Any]:
    return {key: table[key] for key in sorted(table)}  # type: ignore[type-var]


def _in_days(days: float | None) -> datetime | None:
    if days is not None and not 0 < days <= 36500:
        raise UserError(f"A token for {days} days is not possible: give more than 0, and at most 36500.")
    return None if days is None else _now() + timedelta(days=days)


def _now() -> datetime:
    return datetime.now(UTC)
