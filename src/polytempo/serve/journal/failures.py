"""Events that the strategy cannot take when they are replayed, and what the operator is told about them."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from polytempo.serve.journal.database import DamagedError, JournalError, leave_out_options
from polytempo.serve.state.events import Event


class Failure(NamedTuple):
    """An event that the strategy cannot take."""

    number: int
    event: Event
    error: BaseException


class UnreplayableError(DamagedError):
    """The strategy cannot take events that it took before."""

    def __init__(self, directory: Path, failures: Sequence[Failure], left_out: Collection[int] = ()) -> None:
        """``left_out``: the events that the operator leaves out already."""
        first = failures[0]
        leave_out = leave_out_options({*left_out, *(failure.number for failure in failures)})
        more = f" Without it, {len(failures) - 1} later events cannot be taken either." if len(failures) > 1 else ""
        JournalError.__init__(
            self,
            f"The strategy cannot take event {first.number} ({first.event.description}) of the journal in {directory} "
            f"again: {first.error!r}.{more} Nothing was changed. Mend the strategy and start with --accept-version; or "
            f"start with {leave_out} to go on without; or with --lose-tail to lose everything from there on.",
        )
        self.number = first.number
