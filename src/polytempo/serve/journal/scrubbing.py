"""A journal that holds one state and nothing from before it, down to the bytes in its files."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

from polytempo.serve.journal.database import TakenError, connect, reading, transaction, unwritable
from polytempo.serve.journal.snapshot_files import Snapshot
from polytempo.serve.journal.store import Journal
from polytempo.serve.paths import STATUS
from polytempo_client.disk.files import sync_directory

LEFT_BEHIND = ("updates-*", "snapshot-*", ".snapshot-*", STATUS, f".{STATUS}.*")
"""Files that may hold what clients handed in, and their figures."""


def begin_anew(directory: Path, made: Snapshot, about: dict[str, Any]) -> None:
    """In one step of the database, let this snapshot be all that the journal holds, and ``about`` be part of what the
    service is. The caller holds the journal's lock."""
    rows = [(name, json.dumps(value)) for name, value in about.items()]
    with closing(connect(directory)) as database:
        database.execute("PRAGMA secure_delete = ON")
        with transaction(database, directory):
            database.execute("DELETE FROM events")
            database.execute("DELETE FROM outcomes")
            database.execute("DELETE FROM snapshots")
            database.execute("INSERT INTO snapshots VALUES (?, ?, ?)", (made.number, made.size, made.crc))
            database.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", rows)


def scrub(directory: Path) -> None:
    """Remove from the files what no row speaks of any more. The caller holds the journal's lock."""
    with closing(Journal(directory)) as journal:
        used = journal.files()
    try:
        for path in [path for pattern in LEFT_BEHIND for path in directory.glob(pattern)]:
            if path.name not in used:
                path.unlink(missing_ok=True)
        sync_directory(directory)
    except OSError as error:
        raise unwritable(directory, error) from error
    with closing(connect(directory)) as database, reading(directory):
        database.execute("VACUUM")  # writes every page anew; those of deleted rows are gone
        busy, _, _ = database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    if busy:
        raise TakenError(f"Somebody is reading the journal in {directory}. Run the same command again after that.")
