"""Which steps lie in the run files of W&B: a log of protocol buffers in blocks of 32 KiB. W&B writes behind the run.
What a kill has cost is known only from there."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from polytempo.track.tracker import extra

MARK = b":W&B"
BLOCK, HEADER = 32768, 7
WHOLE, LAST = 1, 4  # kinds of a record's part


def records(path: Path) -> Iterator[Any]:
    """The records of a run file, as far as they are whole."""
    made = extra("wandb.proto.wandb_internal_pb2", "wandb").Record
    data, position, parts = path.read_bytes(), HEADER, b""
    if not data.startswith(MARK):
        return
    while True:
        room = BLOCK - position % BLOCK
        if room < HEADER:
            position += room
        if position + HEADER > len(data):
            return
        _, length, kind = struct.unpack_from("<IHB", data, position)
        position += HEADER
        if position + length > len(data):
            return
        parts += data[position : position + length]
        position += length
        if kind in (WHOLE, LAST):
            yield made.FromString(parts)
            parts = b""


def logged_steps(directory: Path, run_id: str) -> set[int]:
    """The steps that the files of a run hold, whichever process wrote them."""
    found = (record for path in directory.glob(f"*/run-{run_id}.wandb") for record in records(path))
    return {record.history.step.num for record in found if record.WhichOneof("record_type") == "history"}
