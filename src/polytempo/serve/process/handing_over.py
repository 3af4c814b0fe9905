"""A hand-over: the server that leads lets another one lead, because an operator says so."""

import time
from dataclasses import dataclass
from pathlib import Path

from polytempo.core.errors import PassingError, UserError
from polytempo.serve.storage.address import database_of

SECONDS = 60.0
"""That a leader may take: it answers what has arrived, and may have to write a snapshot."""
LOOK_EVERY = 0.05


@dataclass(frozen=True)
class LeadChange:
    """What has been done."""

    before: str
    """The address of the server that led."""
    leader: str
    """That of the one that leads now."""
    epoch: int
    seconds: float
    """That it took."""


def hand_over(directory: Path, to: str | None = None) -> LeadChange:
    """Let another server lead the service of this directory: the one with this address, or whichever is ready."""
    address = database_of(directory)
    if address is None:
        raise UserError(
            f"The service of {directory} is kept in its directory, so no other server stands by. `polytempo move` "
            "moves it to a database that several servers can share."
        )
    from polytempo.serve.storage import lease, notices, servers  # an extra
    from polytempo.serve.storage.database import connect, told_in_words

    with connect(address) as connection, told_in_words(address):
        began, before, known = time.monotonic(), lease.look(connection), servers.servers(connection)
        leader = next((one for one in known if one.name == before.holder), None)
        if before.is_free or leader is None:
            raise PassingError(f"No server leads the service in {address} at the moment. Nothing was changed.")
        ready = [one for one in known if one.is_there and one.can_lead and one.name != before.holder]
        chosen = [one for one in ready if to in (None, one.told.address)]
        if not chosen:
            there = ", ".join(one.told.address for one in ready) or "none"
            whom = "No server" if to is None else f"No server at {to}"
            raise UserError(f"{whom} stands by that could lead. Nothing was changed. Those that could: {there}.")
        lease.ask_for_hand_over(connection, before.epoch, lease.ANYBODY if to is None else chosen[0].name)
        notices.tell(connection, address)
        while time.monotonic() < began + SECONDS:
            now, known = lease.look(connection), servers.servers(connection)
            new = next((one for one in known if one.name == now.holder and one.told.role == "leader"), None)
            if now.epoch > before.epoch and new is not None and new.name != leader.name:
                return LeadChange(leader.told.address, new.told.address, now.epoch, time.monotonic() - began)
            time.sleep(LOOK_EVERY)
        lease.ask_for_hand_over(connection, before.epoch, "")
    raise PassingError(f"{leader.told.address} has not handed over within {SECONDS:g} s. Its log says why.")
