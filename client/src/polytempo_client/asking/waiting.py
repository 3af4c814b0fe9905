"""Hold a task until the policy has a reason to train it."""

from collections.abc import Callable


def wait_for_reason(look: Callable[[int], str | None], hold: Callable[[], bool], at_once: bool) -> str | None:
    """Why the client asks; None if the server wants the task now. ``look`` is told how often the client has looked
    before, and says whether there is a reason. ``hold`` waits until the next look, and says whether the server lets it.
    ``at_once``: look before the first wait, as a client does that watches its data and has never trained."""
    looks = 0
    why = look(looks) if at_once else None
    while why is None:
        if not hold():
            return None
        looks += 1
        why = look(looks)
    return why
