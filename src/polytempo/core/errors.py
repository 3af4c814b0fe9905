"""What goes wrong on the user's side. The message says what was wrong, what was expected, and what to do."""

import errno

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""A disk that is full, a quota that is used up, a disk that fails: none of them is a matter of what was asked for."""


class UserError(Exception):
    """Bad input: shown on stderr without a traceback, exit code 2."""


class DivergenceError(UserError):
    """Training diverged with these settings. With others it may not."""


class PassingError(UserError):
    """Something that may be otherwise in a moment, such as a port that is in use: exit code 75, as a sign for whoever
    supervises the process that trying again may help."""


class StrategyError(Exception):
    """A strategy broke the contract between strategies and drivers, for example by ordering a busy client to train."""


def exit_code(error: Exception) -> int:
    """Of a process that such an error ends."""
    return 75 if isinstance(error, PassingError) else 2
