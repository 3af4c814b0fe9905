"""What goes wrong, as exceptions. A message says what was wrong, what was expected, and what to do.

    UserError                 everything below, and what else is wrong with what was given
      PassingError            it may be otherwise in a moment, such as a file that another process has locked
      UpdateError             a result that does not fit its task; nothing was sent, and the task is still open
        NamesError            a tensor is missing, or is none of the model's
        ShapeError            a tensor has another shape
        DtypeError            a tensor does not hold real numbers
        NotFiniteError        a tensor holds NaN or Inf
      RefusedError            the server does not take what was sent
      AccessError             the server does not let this client in
        TokenError            the token is missing, unknown or expired
        CertificateError      a certificate is missing, expired, another's, or for another host name
        DisplacedError        another program uses this client's token
      VersionError            the server speaks another protocol
      UnreachableError        no server answered for as long as was asked for
      KeepError               a file of this client's cannot be written, for example on a full disk
      SpentError              one more update would reveal more than was allowed

A wait that was given a ``timeout`` ends with Python's own TimeoutError.
"""


class UserError(Exception):
    """Bad input: shown on stderr without a traceback, exit code 2."""


class PassingError(UserError):
    """Something that may be otherwise in a moment, such as a port that is in use: exit code 75, as a sign for whoever
    supervises the process that trying again may help."""


class UpdateError(UserError):
    """A result that does not fit its task. Nothing was sent, and the task is still open."""


class NamesError(UpdateError):
    """A tensor is missing, or is none of the model's."""


class ShapeError(UpdateError):
    """A tensor has another shape than the model's."""


class DtypeError(UpdateError):
    """A tensor does not hold real numbers."""


class NotFiniteError(UpdateError):
    """A tensor holds NaN or Inf."""


class RefusedError(UserError):
    """The server does not take what was sent; the text is its reason. ``void``: nothing is wrong with it, but it comes
    too late. ``failed``: the server's method failed on it."""

    def __init__(self, reason: str, void: bool = False, failed: bool = False) -> None:
        super().__init__(reason)
        self.void, self.failed = void, failed


class AccessError(UserError):
    """The server does not let this client in."""


class TokenError(AccessError):
    """The token is missing, or no client of the server has it, or it has expired."""


class CertificateError(AccessError):
    """A certificate is missing, expired, signed by somebody else, or for another host name."""


class DisplacedError(AccessError):
    """Another program uses this client's token, and takes its session again and again."""


class VersionError(UserError):
    """The server speaks a protocol that this version does not know."""


class UnreachableError(UserError):
    """No server answered for as long as was asked for."""


class KeepError(UserError):
    """A file of this client's cannot be written, for example on a full disk."""


class SpentError(UserError):
    """One more update would reveal more than was allowed."""


class WireError(Exception):
    """What came is no message of the protocol. The text says why."""


def exit_code(error: Exception) -> int:
    """Of a process that such an error ends."""
    return 75 if isinstance(error, PassingError) else 2
