"""Which events an operator names to go on without, and how messages name them."""

from collections.abc import Collection, Iterable, Sequence

from polytempo.core.errors import UserError

MOST_SHOWN = 3
"""Events that a message names one by one. More of them become one range."""


def parse_events(texts: Iterable[str]) -> tuple[range, ...]:
    """``8`` and ``8-28`` as ranges of events."""
    return tuple(map(_parse, texts))


def _parse(text: str) -> range:
    first, dash, last = text.partition("-")
    try:
        events = range(int(first), int(last if dash else first) + 1)
    except ValueError:
        events = range(0)
    if not events:
        raise UserError(
            f"--leave-out {text!r} is not understood. Expected an event, such as 8, or a range, such as 8-28."
        )
    return events


def leave_out_options(numbers: Collection[int], given: Sequence[range] = ()) -> str:
    """What to start with to go on without these events, beside what was given already. Of a range only those events are
    left out that cannot be taken, so one range may stand for many."""
    more = [range(number, number + 1) for number in sorted(numbers)]
    if len(more) > MOST_SHOWN:
        more = [range(more[0].start, more[-1].stop)]
    return " ".join(f"--leave-out {_shown(events)}" for events in dict.fromkeys([*given, *more]))


def in_words(numbers: Collection[int]) -> str:
    """These events, to begin a sentence."""
    first, last = min(numbers), max(numbers)
    if len(numbers) == 1:
        return f"Event {first}"
    return (
        f"Events {first} to {last}"
        if last - first + 1 == len(numbers)
        else f"{len(numbers)} events from {first} to {last}"
    )


def _shown(events: range) -> str:
    return str(events.start) if len(events) == 1 else f"{events.start}-{events[-1]}"
