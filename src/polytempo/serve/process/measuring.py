"""A device file from what a service has measured, so that methods can be tried in simulation on its own clients."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from polytempo.core.errors import UserError
from polytempo.core.status import Status
from polytempo.serve.state.service import Member

FEWEST = 3
"""Rounds that say something of a device."""
FASTEST = 1e-9
"""Seconds per step of a client that answered in no time: a device file wants more than 0."""
HEAD = """\
# Devices as a service has measured them. Use this file with `polytempo run ... --devices FILE`.
#
# seconds_per_step  median over the last rounds, from the order to the update, without the upload. It includes the
#                   download, whose end the server cannot see, and whatever a client does before it trains: clients that
#                   hold an order or think look slower than they are. A refresh in the middle of a round counts as part
#                   of it.
# up                bytes per second of updates, from the first frame to the last. Without it the updates were too small
#                   to be timed, and the upload is part of seconds_per_step.
# down              not measured: downloads take no time of their own here.
# availability      mean seconds there and away at a stretch. A client without it never came back from an absence.
# jitter            spread of a client's rounds around their median, as a share of it; the median over the clients.
"""


@dataclass(frozen=True)
class Figures:
    """What was measured of one client."""

    rounds: int
    seconds_per_step: float
    up: float | None
    availability: tuple[float, float] | None


def device_file_text(members: Mapping[int, Member], now: float) -> str:
    """The text of a device file with a table for every client that was measured. A device file counts its clients from
    0, so they get new numbers, in the same order; a comment has the client's own."""
    known = {client: _figures(member, now) for client, member in sorted(members.items())}
    measured = {client: one for client, one in known.items() if one.rounds >= FEWEST}
    if not measured:
        raise UserError(
            f"Nothing can be said of any device yet: no client has handed in {FEWEST} updates. Wait until some have."
        )
    left_out = [client for client in known if client not in measured]
    about = [f"# Without {_clients(left_out)}: fewer than {FEWEST} updates."] if left_out else []
    jitter = median(members[client].measured.jitter() for client in measured)
    tables = ["\n".join(_table(number, client, one)) for number, (client, one) in enumerate(measured.items())]
    return "\n".join([HEAD, *about, f"jitter = {jitter:.3f}", *tables]) + "\n"


def _figures(member: Member, now: float) -> Figures:
    seen = member.measured
    return Figures(
        seen.rounds,
        max(seen.seconds_per_step() or 0.0, FASTEST),
        seen.upload(),
        seen.availability(now - member.status_since, member.status != Status.AWAY),
    )


def _clients(numbers: list[int]) -> str:
    if len(numbers) > 10:
        return f"{len(numbers):,} clients"
    return f"client{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"


def _table(number: int, client: int, figures: Figures) -> Iterator[str]:
    yield f"\n[[client]]  # client {client} of the service: {figures.rounds:,} updates"
    yield f"number = {number}"
    yield f"seconds_per_step = {figures.seconds_per_step!r}"
    if figures.up is not None:
        yield f"up = {figures.up!r}"
    if figures.availability is not None:
        on, off = figures.availability
        yield f"availability = {{ on = {on!r}, off = {off!r} }}"
