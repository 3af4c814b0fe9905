"""What goes wrong on the user's side. The message says what was wrong, what was expected, and what to do."""


class UserError(Exception):
    """Bad input: shown on stderr without a traceback, exit code 2."""


class StrategyError(Exception):
    """A strategy broke the contract between strategies and drivers, for example by ordering a busy client to train."""
