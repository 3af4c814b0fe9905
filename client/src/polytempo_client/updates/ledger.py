"""How much a client has revealed: its privatised updates, counted in a file before they leave, so that a crash can only
count one too many. The count belongs to the data, not to a server: who uses the data elsewhere takes the same file."""

import json
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from polytempo_client.disk.files import write_bytes
from polytempo_client.disk.locks import locked
from polytempo_client.disk.reading import read_plain
from polytempo_client.errors import SpentError, UserError
from polytempo_client.model.schema import Schema
from polytempo_client.privacy import Privacy, epsilon_at, mu_of, privatised, updates_within
from polytempo_client.protocol.tasks import Task
from polytempo_client.updates.uploads import end_of, start_of, trained_by

FORMAT = 1

Updates = dict[float, int]
"""How many were released with which noise."""


class Ledger:
    """Counts the updates that leave with this privacy; in ``file``, so that the count outlives the process, and up to
    an accounted epsilon of ``limit``. Several processes may use one file at the same time. ``new``: begin a file, for
    data of which nothing has left yet; otherwise it has to be there."""

    def __init__(
        self, privacy: Privacy, file: str | Path | None = None, limit: float | None = None, *, new: bool = False
    ) -> None:
        if not privacy.noise:
            raise UserError("Privacy: noise is 0, which hides nothing; expected more, for example 1.")
        if limit is not None and not 0 < limit < math.inf:
            raise UserError(f"Privacy: the limit of epsilon is {limit!r}; expected a number above 0, for example 8.")
        self.privacy, self.limit = privacy, limit
        self._file = None if file is None else Path(file)
        self._updates: Updates = {}
        if self._file is not None:
            if self._file.is_dir() or not self._file.parent.is_dir():
                raise UserError(
                    f"Updates cannot be counted in {self._file}: expected a file's name in a folder that is there."
                )
            if new:
                begin(self._file)
            self._updates = read_updates(self._file)

    @property
    def updates(self) -> int:
        """Released so far."""
        return sum(self._updates.values())

    @property
    def epsilon(self) -> float:
        """What they come to."""
        return epsilon_at(_mu(self._updates), self.privacy.delta)

    @property
    def left(self) -> int | None:
        """How many more may leave; None without a limit."""
        if self.limit is None:
            return None
        return updates_within(self.limit, self.privacy.noise, self.privacy.delta, _mu(self._updates))

    def check(self) -> None:
        """SpentError if no further update may leave."""
        if self.left == 0:
            raise SpentError(
                f"{self.updates:,} updates have come to an epsilon of {self.epsilon:.4g} at delta "
                f"{self.privacy.delta:g}; one more would exceed {self.limit:g}. This client has given what it may."
            )

    def count(self) -> None:
        """One more update leaves. When this returns that is on the disk; SpentError if it may not leave."""
        noise = self.privacy.noise
        if self._file is None:
            self.check()
            self._updates[noise] = self._updates.get(noise, 0) + 1
            return
        try:
            with _locked(self._file):
                self._take_over(read_updates(self._file))
                self.check()
                counted = {**self._updates, noise: self._updates.get(noise, 0) + 1}
                write_updates(self._file, counted)
                self._updates = counted
        except OSError as error:
            raise UserError(
                f"The update cannot be counted in {self._file} and does not leave: {error.strerror}. Make room, or "
                "make the file and its folder writable."
            ) from None

    def _take_over(self, found: Updates) -> None:
        """Others may have counted more meanwhile, nobody less."""
        if any(found.get(noise, 0) < count for noise, count in self._updates.items()):
            raise UserError(
                f"The ledger {self._file} counts fewer updates than before: somebody has removed or replaced it. No "
                "update leaves. Put the file back and start again."
            )
        self._updates = found

    def release(self, task: Task, trained: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Count, and privatise what a training loop of one's own made of a task: push the result, without answers.
        Tensors that the task does not train may be left out. What the training started from is the model as it came,
        whatever was written into its arrays since."""
        tensors = task.started.tensors
        schema = Schema(tuple(tensors), tuple(array.shape for array in tensors.values()), 0)
        start, moving = start_of(task, None, schema), trained_by(task, schema)
        end = end_of(trained, start, moving, schema)
        self.count()
        shown = privatised(start, end, self.privacy, trained=moving)
        return schema.views(shown)


def _mu(updates: Updates) -> float:
    return math.sqrt(sum(count * mu_of(noise) ** 2 for noise, count in updates.items()))


def read_updates(file: Path) -> Updates:
    """What the file counts. A file that is not there, or holds something else, is an error and not a new beginning."""
    try:
        found = json.loads(read_plain(file))
        updates = {float(noise): count for noise, count in found["updates_by_noise"].items()}
        if found["format"] != FORMAT or not all(n > 0 and type(k) is int and k >= 0 for n, k in updates.items()):
            raise ValueError
    except FileNotFoundError:
        raise UserError(
            f"There is no ledger {file}, and without it nobody knows what this client has revealed. Put it back; or, "
            "if nothing of these data has ever left, begin one with --new-ledger (in Python: new=True)."
        ) from None
    except OSError as error:
        raise UserError(f"The ledger {file} cannot be read: {error.strerror}.") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise UserError(
            f"The ledger {file} is damaged, of another version, or something else. Without it, nobody knows what this "
            "client has revealed: put a copy back, or name another file if its data are new."
        ) from None
    return updates


def begin(file: Path) -> None:
    """A ledger that counts nothing yet."""
    try:
        with _locked(file):
            if file.exists():
                raise UserError(
                    f"The ledger {file} exists: leave --new-ledger (in Python: new=True) out to go on with it."
                )
            write_updates(file, {})
    except OSError as error:
        raise UserError(f"The ledger {file} cannot be written: {error.strerror}. Choose another file.") from None


def write_updates(file: Path, updates: Updates) -> None:
    content = {"format": FORMAT, "updates_by_noise": {repr(float(noise)): count for noise, count in updates.items()}}
    write_bytes(file, json.dumps(content).encode() + b"\n", 0o600)


def _locked(file: Path) -> AbstractContextManager[None]:
    """Nobody else counts meanwhile. The lock is a file beside it, because the ledger itself is replaced."""
    return locked(file.with_name(file.name + ".lock"))
