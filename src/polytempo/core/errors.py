"""What goes wrong on the user's side. The message says what was wrong, what was expected, and what to do."""

import errno

from polytempo_client.errors import PassingError as PassingError
from polytempo_client.errors import UserError as UserError
from polytempo_client.errors import exit_code as exit_code

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""A disk that is full, a quota that is used up, a disk that fails: none of them is a matter of what was asked for."""


class DivergenceError(UserError):
    """Training diverged with these settings. With others it may not."""


class StrategyError(Exception):
    """A strategy broke the contract between strategies and drivers, for example by ordering a busy client to train."""
