"""Who leads: one row of the database, held by one server for as long as it renews it. Each time that it is taken, its
epoch grows by one.

Only the database's clock counts. Whoever holds the lease writes in transactions that end with ``fence``. It changes the
row of the lease, and fails if the epoch is another one. PostgreSQL lets one transaction at a time change a row, and
whoever waited sees what the one before has made of it. So either the leader's transaction comes first, and whoever
takes the lease finds what it wrote; or the lease is taken first, and the transaction fails as a whole."""

from dataclasses import dataclass
from datetime import timedelta

from polytempo.serve.storage.database import Connection, DatabaseStatements, query

ANYBODY = "*"
"""In place of a server's name: whichever is ready."""
TAKE = """
UPDATE lease SET epoch = epoch + 1, holder = ?, expires = clock_timestamp() + ?, asked = ''
WHERE expires < clock_timestamp() OR holder = ? RETURNING epoch
"""
RENEW = "UPDATE lease SET expires = clock_timestamp() + ? WHERE epoch = ? AND holder = ? RETURNING 1"
RELEASE = "UPDATE lease SET holder = '', expires = '-infinity' WHERE epoch = ? AND holder = ?"
HAND_OVER = """
UPDATE lease SET epoch = epoch + 1, holder = ?, expires = clock_timestamp() + ?, asked = ''
WHERE epoch = ? AND holder = ? RETURNING 1
"""
LOOK = """
SELECT epoch, holder, last, confirmed, asked, extract(epoch FROM expires - clock_timestamp())::float8 FROM lease
"""
ASK = "UPDATE lease SET asked = ? WHERE epoch = ? RETURNING 1"
END_OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = ? AND usename = current_user
"""


@dataclass(frozen=True)
class Lease:
    """The row as it was a moment ago."""

    epoch: int
    holder: str
    """Empty if it was released."""
    last: int
    """The number of the last event in the journal."""
    confirmed: int
    """The leader has applied the events up to this one, and has written down what came of them."""
    asked: str
    """The server to which the leader is to hand over; empty: none."""
    seconds: float
    """Until it expires."""

    @property
    def is_free(self) -> bool:
        return self.seconds < 0


def look(connection: Connection) -> Lease:
    (row,) = query(connection, LOOK)
    return Lease(*row)


def take(connection: Connection, holder: str, seconds: float) -> int | None:
    """Take the lease if it is free, or was handed to this holder. Returns the new epoch; None if another server has it.
    Connections of the holder before are ended first: one that was stopped in the middle of a transaction would keep
    others waiting for the rows that it has changed."""
    before = look(connection)
    if before.is_free and before.holder not in ("", holder):
        query(connection, END_OTHERS, (before.holder,))
    found = query(connection, TAKE, (holder, timedelta(seconds=seconds), holder))
    epoch: int | None = found[0][0] if found else None
    return epoch


def ask_for_hand_over(connection: Connection, epoch: int, to: str) -> bool:
    """Ask the leader of this epoch to hand over to another server. Returns whether it leads still."""
    return bool(query(connection, ASK, (to, epoch)))


def renew(connection: Connection, epoch: int, holder: str, seconds: float) -> bool:
    """Hold the lease for so many seconds from now on. Returns whether it is still held."""
    return bool(query(connection, RENEW, (timedelta(seconds=seconds), epoch, holder)))


def release(connection: Connection, epoch: int, holder: str) -> None:
    DatabaseStatements(connection).execute(RELEASE, (epoch, holder))


def hand_over(connection: Connection, epoch: int, holder: str, to: str, seconds: float) -> bool:
    """Give the lease to another server, which has so many seconds to take it. Returns whether it could be given."""
    return bool(query(connection, HAND_OVER, (to, timedelta(seconds=seconds), epoch, holder)))


def fence(statements: DatabaseStatements, epoch: int) -> None:
    """Let the transaction fail if the epoch is over."""
    statements.execute("UPDATE lease SET epoch = CASE WHEN epoch = ? THEN epoch END", (epoch,))


def fence_confirmed(statements: DatabaseStatements, epoch: int, confirmed: int) -> None:
    """The same; the events up to ``confirmed`` have been applied."""
    statements.execute("UPDATE lease SET epoch = CASE WHEN epoch = ? THEN epoch END, confirmed = ?", (epoch, confirmed))


def fence_end(statements: DatabaseStatements, epoch: int, end: int, confirmed: int, behind: int | None = None) -> None:
    """The same, where the journal ends with event ``end`` from then on. ``behind``: the transaction fails, too, if it
    did not end with this one before."""
    holds, values = "epoch = ?", [epoch]
    if behind is not None:
        holds, values = "epoch = ? AND last = ?", [epoch, behind]
    statements.execute(
        f"UPDATE lease SET epoch = CASE WHEN {holds} THEN epoch END, last = ?, confirmed = ?", [*values, end, confirmed]
    )
