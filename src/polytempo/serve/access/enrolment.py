"""One-time codes, and the tokens that clients get with them."""

import re
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from polytempo.core.errors import UserError
from polytempo.serve.access.roster import Code, Pass, changing, client_name, utc_now
from polytempo.serve.access.tokens import end_after
from polytempo_client.session.credentials import hash_of

CODE_HOURS = 24.0
UNKNOWN_CODE = "This code is not known: it was used, has expired, or never was one. Ask for a new one."


class EnrolmentError(UserError):
    """What a stranger may know about why it is not let in."""


def make_code(directory: Path, client: int, hours: float = CODE_HOURS, days: float | None = None) -> str:
    """A one-time code with which a client gets its token (``polytempo enrol``), valid for so many hours; the token is
    valid for so many days (default: for ever). Earlier codes of the client count no more; its token does until it
    enrols anew."""
    if not 0 <= client < 10**9:
        raise UserError(f"{client} is no number of a client: give one from 0 on.")
    if not 0 < hours <= 8760:
        raise UserError(f"A code for {hours} hours is not possible: give more than 0, and at most a year.")
    end_after(days)  # is it possible?
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
        entry = Pass(token=token_hash, expires=end_after(days), code=used)
        known["clients"][found.client] = entry
        return found.client, entry.expires
