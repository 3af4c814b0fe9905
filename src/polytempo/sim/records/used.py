"""How the models that clients use do on each of their test rows at the end of a run. Two runs in one world can then be
compared row by row: who is better off in one than in the other?"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np

from polytempo.core.disk.reading import read_npz
from polytempo_client.disk.files import write_bytes

USED = "used.npz"
"""The file of a run directory."""


@dataclass(frozen=True, eq=False)
class UsedRows:
    """One value per client and test row: is the used model right on it? Where the metric is not right or wrong, what
    it says of the row, negated where higher is better. Client i has ``values[offsets[i]:offsets[i + 1]]``."""

    values: np.ndarray
    """bool, or float32 where they are losses: the lower, the better."""
    offsets: np.ndarray
    checksums: np.ndarray
    """Of each client's test rows and labels: values of different rows are not compared."""

    @classmethod
    def of(
        cls,
        values: Sequence[np.ndarray],
        checksums: Sequence[int],
        sample: np.ndarray | None = None,
        clients: int | None = None,
    ) -> "UsedRows":
        """From the values of each client. Where they are those of a sample of so many clients, the others have none."""
        of_all, rows = np.array(checksums, np.uint64), np.array([len(one) for one in values], np.int64)
        if sample is not None and clients is not None:
            of_all, rows = _scattered(of_all, sample, clients), _scattered(rows, sample, clients)
        return cls(np.concatenate(values), np.concatenate([[0], np.cumsum(rows)]), of_all)

    @property
    def are_losses(self) -> bool:
        return self.values.dtype != bool

    def client(self, client: int) -> np.ndarray:
        """The values of one client's test rows, in their order."""
        part: np.ndarray = self.values[self.offsets[client] : self.offsets[client + 1]]
        return part

    def __len__(self) -> int:
        """How many clients there are."""
        return len(self.checksums)


def _scattered(values: np.ndarray, sample: np.ndarray, clients: int) -> np.ndarray:
    """Zeros for all others."""
    of_all = np.zeros(clients, values.dtype)
    of_all[sample] = values
    return of_all


def checksum(rows: np.ndarray, labels: np.ndarray) -> int:
    """Of a client's test rows, by their numbers in the data set, and of their labels as the client sees them."""
    name = hashlib.blake2b(digest_size=8)
    for part in (rows.astype("<i8"), labels):
        name.update(np.ascontiguousarray(part).tobytes())
    return int.from_bytes(name.digest(), "little")


def write_used(directory: Path, used: UsedRows) -> None:
    """Eight test rows to a byte, or four bytes for each loss."""
    values = {"losses": used.values} if used.are_losses else {"right": np.packbits(used.values)}
    content = BytesIO()  # because numpy says of a full disk only how many bytes it took
    np.savez(content, offsets=used.offsets, checksums=used.checksums, **values)
    write_bytes(directory / USED, content.getvalue())


def read_used(path: Path) -> UsedRows:
    """Read the file back. OSError or ValueError say what is wrong with it."""
    arrays = read_npz(path, ("right", "losses", "offsets", "checksums"))
    if not {"offsets", "checksums"} <= arrays.keys() or ("right" in arrays) == ("losses" in arrays):
        raise ValueError("expected offsets, checksums, and either right or losses")
    offsets, checksums = arrays["offsets"], arrays["checksums"]
    if offsets.ndim != 1 or offsets.dtype.kind != "i" or len(offsets) != len(checksums) + 1 or offsets[0] != 0:
        raise ValueError("its offsets are not those of its clients")
    rows = int(offsets[-1])
    stored = arrays.get("right", arrays.get("losses"))
    assert stored is not None
    if np.any(np.diff(offsets) < 0) or len(stored) != (-(-rows // 8) if "right" in arrays else rows):
        raise ValueError("it does not hold one value per test row")
    if "losses" in arrays:
        return UsedRows(stored.astype(np.float32), offsets, checksums)
    return UsedRows(np.unpackbits(stored.astype(np.uint8), count=rows).astype(bool), offsets, checksums)
