"""What may change while a service runs, as validated data: the file ``service.toml`` of its directory, which is read
when it starts and again at SIGHUP."""

from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field

from polytempo.core.errors import UserError
from polytempo.serve.storage.documents import Documents, documents_of
from polytempo.world.tables import FileTable, checked, parse_toml

FADING = 6
"""How fast the absolute part of the norm bound fades as the initial model gets longer: with the default settings only
the relative part counts from a norm of 5.2 on. Networks begin above that. The coefficients of linear models that start
from zeros, or near them, end with norms from 3 to 50,000, depending on the units of the features."""


class Bound(NamedTuple):
    """How far an update may lead from its start."""

    distance: float
    setting: str
    """The setting that decides it."""
    words: str
    """The same with its value, to be read."""


class Limits(FileTable):
    """How much one may ask of the server. What is beyond waits, or is refused."""

    clients: int = Field(default=2_000, ge=1, description="that may be connected at a time")
    sessions: int = Field(default=4_000, ge=1, description="open at a time")
    requests_per_second: float = Field(default=100.0, gt=0, description="of one client; who asks more often waits")
    message_bytes: int | None = Field(
        default=None, ge=1024, description="the largest message taken (default: the model's size and 8 MB for answers)"
    )
    memory_bytes: int = Field(
        default=1 << 30,
        ge=1 << 20,
        description="of messages that have come in part, or are waiting; who sends more comes again",
    )
    resident_bytes: int | None = Field(
        default=None,
        ge=1 << 26,
        description="of the whole process, above which clients may send little beside their messages (default: half of "
        "the memory that the process may use)",
    )
    hello_seconds: float = Field(default=10.0, gt=0, description="for a new connection to say who it is")
    slow_seconds: float = Field(default=30.0, gt=0, description="grace for a message to arrive whole, ...")
    slowest_bytes_per_second: float = Field(
        default=4096.0, gt=0, description="... beyond which it has to be as fast as this"
    )
    unread_seconds: float = Field(default=60.0, gt=0, description="that a client may leave what it is sent unread")


class QuarantineRule(FileTable):
    """A client is ignored after so many refusals within so many seconds, or in a row without an update that was
    applied."""

    refusals: int = Field(default=20, ge=1)
    seconds: float = Field(default=600.0, gt=0)


class WatchdogRule(FileTable):
    """When a method that does not come back counts as stuck, and when the process ends all the same."""

    event_seconds: float = Field(
        default=60.0, ge=1, description="for one event; a longer one is logged with its stack, and /healthz fails"
    )
    stop_seconds: float = Field(default=300.0, ge=2, description="from SIGTERM to the end of the process")

    @property
    def frozen_seconds(self) -> float:
        """For which no thread may run before the process ends. Nobody can see a SIGTERM meanwhile. At least 2: a
        healthy process may be kept waiting for a moment, too."""
        return min(2 * self.event_seconds, self.stop_seconds)


class FailoverRule(FileTable):
    """When another server takes over, where a service has several."""

    lease_seconds: float = Field(
        default=2.0, ge=0.5, le=600, description="that the leader may be silent before another server leads"
    )


class LogFile(FileTable):
    """Logs as a file instead of stderr; full ones are moved to FILE.1, FILE.2, ..."""

    file: Path | None = None
    bytes: int = Field(default=16 << 20, ge=4096, description="of one file")
    kept: int = Field(default=5, ge=1, description="files beside the one that is written to")


class Operations(FileTable):
    """How a service is run, apart from the method that it serves."""

    norm_bound: float = Field(
        default=10.0,
        gt=0,
        description="how far an update may lead from its start at least, in multiples of the initial model's norm",
    )
    zero_bound: float = Field(
        default=1e6,
        gt=0,
        description="how far it may lead where the initial model is zeros, which have no scale; with a norm N above 1 "
        "this is divided by N^6",
    )
    patience: float = Field(
        default=60.0, gt=0, description="seconds that a client may be away before it counts as gone"
    )
    task_seconds: float | None = Field(
        default=86400.0,
        gt=0,
        description="that a connected client may be silent, with or without a task, before it is gone",
    )
    encodings: tuple[Literal["fp16", "topk"], ...] = Field(
        default=("fp16", "topk"), description="of updates and models on the wire that clients may ask for"
    )
    token_days: float | None = Field(
        default=None, gt=0, le=36500, description="the longest that a token counts that a client enrols with"
    )
    most_samples: int = Field(
        default=10**9, ge=1, description="maximum sample count a client may report; larger updates are refused"
    )
    limits: Limits = Limits()
    quarantine: QuarantineRule = QuarantineRule()
    watchdog: WatchdogRule = WatchdogRule()
    failover: FailoverRule = FailoverRule()
    log: LogFile = LogFile()

    def bound(self, initial_norm: float) -> Bound:
        """How far an update may lead from its start: the larger of a part that grows with the initial model, and one
        for models that are too short to say how far training leads."""
        relative, absolute = self.norm_bound * initial_norm, self.zero_bound / max(initial_norm, 1.0) ** FADING
        if relative >= absolute:
            words = f"norm_bound {self.norm_bound:g} x initial norm {initial_norm:.4g}"
            return Bound(relative, "norm_bound", words)
        faded = "" if initial_norm <= 1 else f" / (initial norm {initial_norm:.4g})^{FADING}"
        return Bound(absolute, "zero_bound", f"zero_bound {self.zero_bound:g}{faded}")


def read_operations(path: Path, documents: Documents | None = None) -> Operations:
    """That of the service in the directory of this file, wherever the service is kept; without one everything has its
    default."""
    documents = documents or documents_of(path.parent)
    title = documents.title(path.name)
    try:
        return parse_operations(documents.read(path.name), title)
    except FileNotFoundError:
        return Operations()
    except OSError as error:
        raise UserError(f"Cannot read {title}: {error.strerror}. Give it another owner, or another mode.") from None


def parse_operations(content: bytes, title: str) -> Operations:
    """What the document with this title says."""
    return checked(Operations, parse_toml(content, title), title)
