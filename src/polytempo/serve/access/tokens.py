"""Tokens: made, revoked and read from their files. The token alone says who somebody is: a client can act only as
itself, and its token opens nothing that is an operator's."""

import re
import secrets
import time
from datetime import datetime, timedelta
from pathlib import Path

from polytempo.core.errors import UserError
from polytempo.serve.access.roster import OperatorPass, Pass, Role, changing, client_name, utc_now
from polytempo.serve.paths import ACCESS
from polytempo_client.disk.files import write_bytes
from polytempo_client.session.credentials import hash_of

NAME = "[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"


def make_tokens(directory: Path, clients: int, days: float | None = None) -> list[Path]:
    """Make a token for each of the clients 0 .. ``clients`` - 1 that has none, valid for so many days (default: for
    ever): its hash goes to ``access.json``, the token to ``client-N.token``. Tokens made earlier stay valid; a client
    whose token was revoked or has expired gets a new one. Returns the new token files."""
    if clients < 1:
        raise UserError(f"Tokens for {clients} clients make no sense: give a number from 1 on.")
    expires = end_after(days)
    with changing(directory, make=True) as known:
        valid = {client for client, entry in known["clients"].items() if entry.is_valid(time.time())}
        missing = [client for client in range(clients) if client not in valid]
        for client in missing:
            known["clients"][client] = Pass(token=_new_token(client_token_file(directory, client)), expires=expires)
    return [client_token_file(directory, client) for client in missing]


def make_operator(directory: Path, name: str, role: Role | None = None, days: float | None = None) -> Path:
    """Make an operator's token, ``operator-NAME.token``; an earlier one of the same name counts no more. The role is
    that of the earlier one, or viewer, if none is given."""
    if not re.fullmatch(NAME, name):
        raise UserError(f"{name!r} is no name for an operator: give letters, digits, hyphens, dots, underscores.")
    path, expires = _operator_token_file(directory, name), end_after(days)
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


def end_after(days: float | None) -> datetime | None:
    """When a token for so many days expires; None without days."""
    if days is not None and not 0 < days <= 36500:
        raise UserError(f"A token for {days} days is not possible: give more than 0, and at most 36500.")
    return None if days is None else utc_now() + timedelta(days=days)
