"""The state that a service has now, read from its journal. Its server may be running."""

from collections.abc import Collection
from pathlib import Path

from polytempo.core.errors import UserError
from polytempo.serve.journal.replay import Replayed, newest
from polytempo.serve.journal.store import Journal
from polytempo.serve.paths import JOURNAL


def current(directory: Path, allowed: Collection[str] = ()) -> Replayed:
    """The state after the last event of the service in this directory; the journal's own directory does as well.
    ``allowed`` is that of ``settings_of``."""
    return newest(journal_in(directory), allowed)


def journal_in(directory: Path) -> Path:
    """The journal's directory, given the service's or the journal's own."""
    for found in (directory / JOURNAL, directory):
        if Journal.exists(found):
            return found
    raise UserError(
        f"{directory} holds no journal. Expected the --dir of `polytempo serve`, or the {JOURNAL} directory in it."
    )
