"""What somebody was given to identify themselves, as files: a token, certificates and keys."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from polytempo.core.disk.reading import read_given, read_plain
from polytempo.core.errors import UserError

CREDENTIAL_BYTES = 1 << 20
"""Most bytes of a file with a token, certificates or a key."""


def read_token(path: Path) -> str:
    """A client's or an operator's own token, from the file it was given."""
    try:
        words = read_given(path, CREDENTIAL_BYTES).decode("ascii").split()
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
    """The SHA-256 of a token: all that the server keeps of it."""
    # A token is 256 random bits, which nobody can guess from a hash however fast; salts and slow hashes are for
    # passwords. A token from the network may hold anything a str can, hence surrogatepass.
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def read_pem(path: Path, read: Callable[[Path, int], bytes] = read_plain) -> bytes:
    """The content of a file that holds certificates or a key. ``read_given`` reads it from a pipe too."""
    try:
        return read(path, CREDENTIAL_BYTES)
    except FileNotFoundError:
        raise UserError(f"There is no {path}. `polytempo certs` makes certificates and keys.") from None
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.") from None
