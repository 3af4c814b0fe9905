"""What somebody was given to identify themselves, as files: a token, certificates and keys."""

import re
from collections.abc import Callable
from pathlib import Path

from polytempo_client.disk.reading import read_given, read_plain
from polytempo_client.errors import CertificateError, TokenError

CREDENTIAL_BYTES = 1 << 20
"""Most bytes of a file with a token, certificates or a key."""

LONGEST_TOKEN = 1024
"""Characters."""


def read_token(path: Path) -> str:
    """A client's or an operator's own token, from the file it was given."""
    try:
        words = read_given(path, CREDENTIAL_BYTES).decode("ascii").split()
    except OSError as error:
        raise TokenError(
            f"Cannot read the token from {path}: {error.strerror}. "
            "Ask whoever runs the server for this client's client-N.token, or enrol with a code."
        ) from None
    except UnicodeDecodeError:
        words = []
    if len(words) != 1 or not is_token(words[0]):
        raise TokenError(f"{path} holds no token: expected one word, as in a client-N.token of `polytempo tokens`.")
    return words[0]


def token_of(given: str | Path) -> str:
    """The token in a file, or the token itself."""
    if isinstance(given, Path) or (len(given) < LONGEST_TOKEN and "\0" not in given and Path(given).is_file()):
        return read_token(Path(given))
    if not is_token(given.strip()):
        raise TokenError("The token is none: expected a file that exists, or one word, as in a client-N.token.")
    return given.strip()


def is_token(word: str) -> bool:
    """May it be one? What cannot travel in a header would keep its client waiting without a word."""
    return re.fullmatch(f"[!-~]{{1,{LONGEST_TOKEN}}}", word) is not None


def hash_of(token: str) -> str:
    """The SHA-256 of a token: all that the server keeps of it."""
    import hashlib  # here, because it takes long to import, and a client needs it only to enrol

    # A token is 256 random bits, which nobody can guess from a hash however fast; salts and slow hashes are for
    # passwords. A token from the network may hold anything a str can, hence surrogatepass.
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def read_pem(path: Path, read: Callable[[Path, int], bytes] = read_plain) -> bytes:
    """The content of a file that holds certificates or a key. ``read_given`` reads it from a pipe too."""
    try:
        return read(path, CREDENTIAL_BYTES)
    except FileNotFoundError:
        raise CertificateError(f"There is no {path}. `polytempo certs` makes certificates and keys.") from None
    except OSError as error:
        raise CertificateError(f"Cannot read {path}: {error.strerror}.") from None
