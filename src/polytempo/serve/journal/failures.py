"""Events that the strategy cannot take when they are replayed, and what the operator is told about them."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from polytempo.serve.journal.database import DamagedError, JournalError, leave_out_options
from polytempo.serve.state.events import Event

LACKING = ("allocate memory", "out of memory", "start new thread")
"""What torch and threading say in a RuntimeError when the system gives no more."""

TRY_AGAIN = (
    " Something around it is wrong: a module, a file, memory or threads are missing. Nothing was changed, and nothing "
    "is lost. Mend that, and start again."
)


class Failure(NamedTuple):
    """An event that the strategy cannot take."""

    number: int
    event: Event
    error: BaseException

    @property
    def is_of_surroundings(self) -> bool:
        """Does the process lack something, rather than the strategy fail?"""
        if isinstance(self.error, RuntimeError):
            return any(words in str(self.error) for words in LACKING)
        return isinstance(self.error, ImportError | OSError | MemoryError)


class UnreplayableError(DamagedError):
    """The strategy cannot take events that it took before."""

    def __init__(self, directory: Path, failures: Sequence[Failure], left_out: Collection[int] = ()) -> None:
        """``left_out``: the events that the operator leaves out already."""
        lacking = next((failure for failure in failures if failure.is_of_surroundings), None)
        first = lacking or failures[0]
        advice = TRY_AGAIN if lacking else _choices(failures, left_out)
        JournalError.__init__(
            self,
            f"The strategy cannot take event {first.number} ({first.event.description}) of the journal in {directory} "
            f"again: {first.error!r}.{advice}",
        )
        self.number = failures[0].number


def _choices(failures: Sequence[Failure], left_out: Collection[int]) -> str:
    """What an operator can do about a strategy that fails."""
    leave_out = leave_out_options({*left_out, *(failure.number for failure in failures)})
    more = f" Without it, {len(failures) - 1} later events cannot be taken either." if len(failures) > 1 else ""
    return (
        f"{more} Nothing was changed. Mend the strategy and start with --accept-version; or start with {leave_out} to "
        "go on without; or with --lose-tail to lose everything from there on."
    )
