"""Updates in fewer bytes: the difference to the start in half precision, all of it or its largest entries, and what was
not sent is added to the next one (error feedback; Seide et al., 2014, Stich et al., 2018).

An encoded difference is named arrays: ``values`` in float16; ``exponent``, the power of two that they are multiplied
by, so that small differences do not underflow and large ones do not overflow; and, of the largest entries, ``gaps``,
how many entries are skipped before each."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from polytempo_client.errors import UserError

DEFAULT_SHARE = 0.01
LARGEST_BITS = 15
"""The largest value is brought below 2**15."""
EXPONENTS = (-126, 127)
"""Powers of two that a float32 holds in full precision."""

Arrays = dict[str, np.ndarray]


class EncodingError(ValueError):
    """These arrays are no encoded difference. The text says why."""


@dataclass(frozen=True)
class Encoding:
    """How differences travel: ``fp16``, all entries, or ``topk``, the ``share`` of them with the largest magnitude."""

    kind: Literal["fp16", "topk"]
    share: float = 1.0

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the arrays."""
        return ("values", "exponent") if self.kind == "fp16" else ("values", "exponent", "gaps")

    def encode(self, difference: np.ndarray) -> Arrays:
        """NaN and Inf are sent as such, for the receiver to refuse."""
        if self.kind == "fp16":
            return _scaled(difference)
        places = _largest(difference, self.count(difference.size))
        return _scaled(difference[places]) | {"gaps": _gaps(places)}

    def decode(self, arrays: Mapping[str, np.ndarray], size: int) -> np.ndarray:
        """The difference as it arrives, ``size`` entries; the arrays may come from anybody."""
        if self.kind == "fp16":
            return _unscaled(arrays, size)
        gaps = _one(arrays, "gaps", (np.uint16, np.uint32))
        if len(gaps) > size:
            raise EncodingError(f"gaps has {len(gaps)} entries; the task trains {size}")
        places = np.cumsum(gaps.astype(np.int64) + 1) - 1  # each place comes once
        if len(places) and places[-1] >= size:
            raise EncodingError(f"gaps lead to entry {places[-1]}; the task trains {size}")
        difference = np.zeros(size, np.float32)
        difference[places] = _unscaled(arrays, len(places))
        return difference

    def nbytes(self, entries: int) -> int:
        """Of a difference with so many entries, unless there are gaps above 65535, which take twice the room."""
        return 4 + (2 if self.kind == "fp16" else 4) * self.count(entries)

    def count(self, entries: int) -> int:
        """How many values it sends of so many entries."""
        return entries if self.kind == "fp16" else math.ceil(self.share * entries - 1e-9)


def parse_encoding(text: str) -> Encoding:
    """An encoding from its words: ``fp16``, ``topk`` or ``topk:SHARE``."""
    if text == "fp16":
        return Encoding("fp16")
    kind, colon, share = text.partition(":")
    try:
        number = float(share) if colon else DEFAULT_SHARE
    except ValueError:
        number = math.nan
    if kind != "topk" or not 0 < number <= 1:
        raise UserError(
            f"Encoding {text!r} is not known. Expected fp16, or topk:SHARE with a share of the entries above 0 and at "
            f"most 1, for example topk:{DEFAULT_SHARE}."
        )
    return Encoding("topk", number)


def parse_encodings(upload: str, download: str) -> tuple[Encoding | None, bool]:
    """How updates are encoded (empty: whole, in float32), and whether models are rounded to half precision."""
    if download and (download != "fp16" or not upload):
        raise UserError(
            f"download is {download!r}, and upload {upload!r}. Expected fp16 beside an encoding of updates: whole "
            "models would hand the rounding of what was downloaded in with every update."
        )
    return parse_encoding(upload) if upload else None, bool(download)


@dataclass(frozen=True)
class Encodings:
    """How updates (``upload``: fp16 or topk:SHARE) and models (``download``: fp16) are to travel; empty for float32."""

    upload: str = ""
    download: str = ""

    def __post_init__(self) -> None:
        parse_encodings(self.upload, self.download)


class ErrorFeedback:
    """What one client has not sent yet. ``encode`` an update, and ``keep`` what is left once the server has it."""

    def __init__(self, encoding: Encoding, residual: np.ndarray | None = None) -> None:
        self.encoding = encoding
        self.residual = residual
        """None: nothing was held back so far."""

    def encode(self, difference: np.ndarray, trained: np.ndarray | None = None) -> tuple[Arrays, np.ndarray]:
        """What to send of this difference and of what is left from earlier ones, and what would then be left. Only
        ``trained`` entries are sent (default: all); of the others what is left stays left."""
        whole = difference if trained is None else np.where(trained, difference, np.float32(0))
        if self.residual is not None:
            whole = whole + self.residual
        part = whole if trained is None else whole[trained]
        arrays = self.encoding.encode(part)
        return arrays, added(whole, -self.encoding.decode(arrays, part.size), trained)

    def keep(self, left: np.ndarray) -> None:
        """Add this to the next update: the server has the one that it is left of."""
        self.residual = left


def added(start: np.ndarray, difference: np.ndarray, trained: np.ndarray | None) -> np.ndarray:
    """``start`` with the difference of its trained entries (None: all)."""
    with np.errstate(over="ignore", invalid="ignore"):  # what is no number is refused elsewhere
        if trained is None:
            return start + difference
        end = start.copy()
        end[trained] += difference
        return end


def nbytes_of(arrays: Mapping[str, np.ndarray]) -> int:
    return sum(array.nbytes for array in arrays.values())


def _largest(difference: np.ndarray, count: int) -> np.ndarray:
    """Places of the entries with the largest magnitude, in order; of equal ones the first. As integers the bits of
    magnitudes have the order of the magnitudes, and NaN comes last."""
    magnitudes = np.abs(difference).view(np.int32)
    least = np.partition(magnitudes, -count)[-count]
    places = np.flatnonzero(magnitudes >= least)
    surplus = len(places) - count
    if surplus:
        equal = np.flatnonzero(magnitudes[places] == least)
        places = np.delete(places, equal[len(equal) - surplus :])
    return places


def _gaps(places: np.ndarray) -> np.ndarray:
    gaps = np.diff(places, prepend=-1) - 1
    return gaps.astype(np.uint16 if gaps.max() < 2**16 else np.uint32)


def _scaled(values: np.ndarray) -> Arrays:
    largest = float(np.abs(values).max())
    exponent = max(math.frexp(largest)[1] - LARGEST_BITS, EXPONENTS[0]) if math.isfinite(largest) else 0
    with np.errstate(over="ignore"):  # beside NaN and Inf
        halves = (values * np.float32(2.0**-exponent)).astype(np.float16)
    return {"values": halves, "exponent": np.array([exponent], np.int32)}


def _unscaled(arrays: Mapping[str, np.ndarray], count: int) -> np.ndarray:
    values, exponent = _one(arrays, "values", (np.float16,)), _one(arrays, "exponent", (np.int32,))
    if len(values) != count or len(exponent) != 1:
        raise EncodingError(
            f"values and exponent have {len(values)} and {len(exponent)} entries; expected {count} and 1"
        )
    if not EXPONENTS[0] <= exponent[0] <= EXPONENTS[1]:
        raise EncodingError(f"the exponent is {exponent[0]}; expected {EXPONENTS[0]} to {EXPONENTS[1]}")
    with np.errstate(over="ignore"):  # they may come from anybody
        return values.astype(np.float32) * np.float32(2.0 ** int(exponent[0]))


def _one(arrays: Mapping[str, np.ndarray], name: str, dtypes: tuple[type, ...]) -> np.ndarray:
    """A row of numbers of one of these types."""
    array = arrays.get(name)
    if array is None or array.ndim != 1 or array.dtype not in [np.dtype(dtype) for dtype in dtypes]:
        found = "is missing" if array is None else f"is {array.dtype} of shape {list(array.shape)}"
        raise EncodingError(f"{name} {found}; expected a row of {' or '.join(dtype.__name__ for dtype in dtypes)}")
    return array
