"""``access.json``, a document of the service: who may talk to the server. Each client and each operator has one secret
token; the server keeps only the tokens' hashes, with one-time codes for enrolment and the clients in quarantine."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
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
from polytempo.core.validation import refusal
from polytempo.serve.paths import ACCESS
from polytempo.serve.storage.documents import Documents, documents_of
from polytempo_client.session.credentials import hash_of

LONGEST_REASON = 500
"""Characters."""

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

    def is_valid(self, now: float) -> bool:
        """At this time, in seconds since 1970."""
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
    """Why a client is ignored."""

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
        """That of the service in the directory of this file, wherever the service is kept."""
        return cls.read_from(documents_of(path.parent), path)

    @classmethod
    def read_from(cls, documents: Documents, path: Path) -> "Roster":
        title = documents.title(path.name)
        try:
            return cls.parse(documents.read(path.name), title)
        except FileNotFoundError:
            advice = f"Make it with `polytempo tokens {path.parent} --clients N`."
            raise UserError(f"There is no {title}. {advice}") from None
        except OSError as error:
            raise UserError(f"Cannot read who may talk to the server from {title}: {error.strerror}.") from None

    @classmethod
    def parse(cls, content: bytes, title: str) -> "Roster":
        """What the document with this title holds, once it has been read."""
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            advice = (
                " Restore it from a copy, or delete it and make new tokens for all clients with `polytempo tokens`."
            )
            raise refusal(error, f"{title} is damaged", advice) from None

    def as_json(self) -> bytes:
        return (json.dumps(self.model_dump(mode="json", exclude_none=True), indent=1) + "\n").encode()

    def client_of(self, token: str, now: float) -> int | None:
        """The client whose token this is and still counts; None if it is nobody's."""
        client = self._clients.get(hash_of(token))
        return client if client is not None and self.clients[client].is_valid(now) else None

    def operator_of(self, token: str, now: float) -> Operator | None:
        """The operator whose token this is and still counts."""
        name = self._operators.get(hash_of(token))
        if name is None or not self.operators[name].is_valid(now):
            return None
        return Operator(name, self.operators[name].role)

    def enrolee_of(self, code: str, token_hash: str) -> int | None:
        """The client that this code is for, if nobody has used it but for this very token."""
        used = hash_of(code)
        if used in self.codes:
            return self.codes[used].client
        client = self._clients.get(token_hash)
        return client if client is not None and self.clients[client].code == used else None

    def objection(self, client: int, token_hash: str, now: float) -> str | None:
        """Why a session that was begun with this token may not go on; None if it may."""
        entry = self.clients.get(client)
        if client in self.quarantined:
            return in_quarantine(self.quarantined[client])
        if entry is None:
            return "the token was revoked"
        if entry.token != token_hash:
            return "this client has been given another token"
        return None if entry.is_valid(now) else "the token has expired"


def in_quarantine(quarantine: Quarantine) -> str:
    return (
        f"this client is in quarantine since {quarantine.since:%Y-%m-%d %H:%M} UTC ({quarantine.reason}): ask whoever "
        "runs the server"
    )


def client_name(client: int) -> str:
    """Of its files, and the common name of its certificate."""
    return f"client-{client}"


@contextmanager
def changing(directory: Path, make: bool = False) -> Iterator[dict[str, Any]]:
    """The roster's tables, to be changed; they are written when that is done, in one step, while nobody else does, for
    several programs may do so at once. ``make``: the directory, or the tables of its database, if they are not
    there."""
    documents = documents_of(directory)
    with documents.changing(ACCESS, make) as document:
        title = documents.title(ACCESS)
        roster = Roster() if document.content is None else Roster.parse(document.content, title)
        tables = {name: dict(getattr(roster, name)) for name in Roster.model_fields}
        yield tables
        changed = with_tables(roster, **tables)
        if changed != roster:
            document.write(changed.as_json())


def changes(before: Roster, after: Roster) -> dict[str, Any]:
    """Who is new, gone or changed in each table, by number or name; of codes, whom they are for."""
    found: dict[str, Any] = {}
    for name in Roster.model_fields:
        old, new = getattr(before, name), getattr(after, name)
        differ = {
            "added": [_whose(new, key) for key in new if key not in old],
            "removed": [_whose(old, key) for key in old if key not in new],
            "changed": [_whose(new, key) for key in new if key in old and new[key] != old[key]],
        }
        if any(differ.values()):
            found[name] = {how: whom for how, whom in differ.items() if whom}
    return found


def _whose(table: Mapping[Any, Any], key: Any) -> int | str:
    entry = table[key]
    return entry.client if isinstance(entry, Code) else key


def with_tables(roster: Roster, **tables: Mapping[Any, Any]) -> Roster:
    kept = {name: getattr(roster, name) for name in Roster.model_fields}
    return Roster(**{name: _in_order(table) for name, table in (kept | tables).items()})


def _in_order(table: Mapping[K, Any]) -> dict[K, Any]:
    return {key: table[key] for key in sorted(table)}  # type: ignore[type-var]


def utc_now() -> datetime:
    return datetime.now(UTC)
