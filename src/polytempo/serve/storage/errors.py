"""What can go wrong with the place where a service is kept."""

from polytempo.core.errors import PassingError, UserError


class JournalError(UserError):
    """The journal cannot be written or read; nothing that was not safe has been acknowledged."""


class UnwritableError(JournalError, PassingError):
    """It cannot be written now: the disk is full, say."""


class TakenError(UnwritableError):
    """Somebody else is writing."""


class LostLeadError(JournalError):
    """Whoever was writing may write no more: another server leads, or it is not known whether what was written last is
    safe. Nothing more may be acknowledged from this state."""


class DamagedError(JournalError):
    """Something in the journal cannot be read."""

    def __init__(self, where: object, number: int, why: str) -> None:
        super().__init__(
            f"The journal in {where} is damaged at event {number}: {why}. Nothing was changed. Restore it from a "
            "backup, or start with --lose-tail to go on from the last good state and lose what came after it."
        )
        self.number = number
