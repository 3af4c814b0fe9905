"""Events that the strategy cannot take when they are replayed, and what the operator is told about them."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from polytempo.serve.journal.leaving_out import in_words, leave_out_options
from polytempo.serve.state.events import Event
from polytempo.serve.storage.errors import DamagedError, JournalError

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

    def __init__(
        self,
        where: str,
        failures: Sequence[Failure],
        left_out: Collection[int] = (),
        dependents: Sequence[Failure] = (),
    ) -> None:
        """``left_out``: the events that the operator leaves out already; ``dependents``: those that do not fit without
        them."""
        lacking = next((failure for failure in failures if failure.is_of_surroundings), None)
        first = lacking or failures[0]
        advice = TRY_AGAIN if lacking else _choices([*failures, *dependents], left_out)
        JournalError.__init__(
            self,
            f"The strategy cannot take event {first.number} ({first.event.description}) of the journal in {where} "
            f"again: {first.error!r}.{advice}",
        )
        self.number = failures[0].number


class DependentError(DamagedError):
    """Events do not fit without others that are left out: they answer a task that was never given, say."""

    def __init__(self, where: str, dependents: Sequence[Failure], left_out: Collection[int]) -> None:
        first, numbers = dependents[0], [failure.number for failure in dependents]
        what = "depends" if len(numbers) == 1 else "depend"
        options = leave_out_options({*left_out, *numbers})
        JournalError.__init__(
            self,
            f"{in_words(numbers)} of the journal in {where} {what} on what is left out ({_inside(left_out)}): "
            f"event {first.number} ({first.event.description}) cannot be taken without it, because {first.error}. "
            f"Nothing was changed. Start with {options} to go on without all of them (of a range, only what cannot be "
            f"taken is left out); or with --lose-tail as well, to lose everything from event {first.number} on.",
        )
        self.number = first.number


def _choices(failures: Sequence[Failure], left_out: Collection[int]) -> str:
    """What an operator can do about a strategy that fails."""
    leave_out = leave_out_options({*left_out, *(failure.number for failure in failures)})
    more = f" Without it, {len(failures) - 1} later events cannot be taken either." if len(failures) > 1 else ""
    depends = f" It may depend on what is left out ({_inside(left_out)})." if left_out else ""
    return (
        f"{depends}{more} Nothing was changed. Mend the strategy and start with --accept-version; or start with "
        f"{leave_out} to go on without; or with --lose-tail to lose everything from there on."
    )


def _inside(numbers: Collection[int]) -> str:
    """Events, inside a sentence."""
    words = in_words(numbers)
    return words[0].lower() + words[1:]
