"""Who may talk to the server. Each client of a federation has one secret token; the server keeps only the tokens'
hashes, in ``clients.json``. The token alone says who a client is, so a client can act only as itself."""

import hashlib
import json
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from polytempo.core.errors import UserError
from polytempo.core.files import write_bytes

ROSTER = "clients.json"


@dataclass(frozen=True)
class Roster:
    """The clients that may talk to the server, by the hash of their token."""

    clients: Mapping[str, int]

    @classmethod
    def read(cls, path: Path) -> "Roster":
        """Read a ``clients.json`` that ``make_tokens`` wrote."""
        try:
            hashes = json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            raise UserError(f"There is no {path}. Make it with `polytempo tokens {path.parent} --clients N`.") from None
        except OSError as error:
            raise UserError(f"Cannot read the clients' tokens from {path}: {error.strerror}.") from None
        except (ValueError, RecursionError):
            raise _malformed(path, "it is not JSON") from None
        _check_hashes(path, hashes)
        return cls({sha: int(client) for client, sha in hashes.items()})

    def client_of(self, token: str) -> int | None:
        """The client whose token this is; None if it is nobody's."""
        return self.clients.get(_hash(token))

    def __len__(self) -> int:
        """How many clients have a token. Revoked ones do not count."""
        return len(self.clients)


def make_tokens(directory: Path, clients: int) -> list[Path]:
    """Make a token for each of the clients 0 .. ``clients`` - 1 that has none: its hash goes to ``clients.json``, the
    token to ``client-N.token``. Tokens made earlier stay valid; a client whose token was revoked gets a new one.
    Returns the new token files."""
    if clients < 1:
        raise UserError(f"Tokens for {clients} clients make no sense: give a number from 1 on.")
    known = _hashes(directory)
    tokens = {client: secrets.token_urlsafe(32) for client in range(clients) if client not in known}
    if not tokens:
        return []
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The roster comes last: a crash before it leaves tokens that count for nothing and are made anew next time.
        for client, token in tokens.items():
            write_bytes(_token_file(directory, client), f"{token}\n".encode(), 0o600)
        _write_hashes(directory, known | {client: _hash(token) for client, token in tokens.items()})
    except OSError as error:
        raise _unwritable(directory, error) from None
    return [_token_file(directory, client) for client in tokens]


def revoke_token(directory: Path, client: int) -> None:
    """Remove a client's hash and its token file: whoever holds the token is a stranger from now on."""
    known = _hashes(directory)
    if client not in known:
        raise UserError(f"Client {client} has no token in {directory / ROSTER}: there is nothing to revoke.")
    del known[client]
    try:
        _write_hashes(directory, known)
        _token_file(directory, client).unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(directory, error) from None


def read_token(path: Path) -> str:
    """A client's own token, from the file it was given."""
    try:
        words = path.read_text("ascii").split()
    except OSError as error:
        raise UserError(
            f"Cannot read the token from {path}: {error.strerror}. "
            "Ask whoever runs the server for this client's client-N.token."
        ) from None
    except UnicodeDecodeError:
        words = []
    if len(words) != 1:
        raise UserError(f"{path} holds no token: expected one word, as in a client-N.token of `polytempo tokens`.")
    return words[0]


def _hash(token: str) -> str:
    # A token is 256 random bits, which nobody can guess from a hash however fast; salts and slow hashes are for
    # passwords. A token from the network may hold anything a str can, hence surrogatepass.
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _hashes(directory: Path) -> dict[int, str]:
    path = directory / ROSTER
    return {client: sha for sha, client in Roster.read(path).clients.items()} if os.path.lexists(path) else {}


def _write_hashes(directory: Path, hashes: Mapping[int, str]) -> None:
    text = json.dumps({str(client): hashes[client] for client in sorted(hashes)}, indent=1) + "\n"
    write_bytes(directory / ROSTER, text.encode(), 0o600)


def _token_file(directory: Path, client: int) -> Path:
    return directory / f"client-{client}.token"


def _check_hashes(path: Path, hashes: object) -> None:
    if not isinstance(hashes, dict):
        raise _malformed(path, "it is not an object")
    for client, sha in hashes.items():
        if not re.fullmatch("0|[1-9][0-9]{0,8}", client):
            raise _malformed(path, f"{client!r} is not the number of a client")
        if not isinstance(sha, str) or not re.fullmatch("[0-9a-f]{64}", sha):
            raise _malformed(path, f"client {client} has no sha256 in hexadecimal digits")
    if len(set(hashes.values())) < len(hashes):
        raise _malformed(path, "two clients have the same token")


def _malformed(path: Path, problem: str) -> UserError:
    return UserError(
        f"{path} is damaged: {problem}. Expected is an object of client number and sha256 of its token. Restore it "
        "from a copy, or delete it and make new tokens for all clients with `polytempo tokens`."
    )


def _unwritable(directory: Path, error: OSError) -> UserError:
    return UserError(f"Cannot write tokens to {directory}: {error.strerror}. Choose another directory.")
