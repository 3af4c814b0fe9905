"""What lies in the run files of W&B's offline mode: a log of protocol buffers in blocks of 32 KiB."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, HEADER = 32768, 7


def records(path: Path) -> Iterator[Any]:
    from wandb.proto.wandb_internal_pb2 import Record

    data, position, parts = path.read_bytes(), HEADER, b""
    while position + HEADER <= len(data):
        room = BLOCK - position % BLOCK
        if room < HEADER:
            position += room
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        position += HEADER
        parts += data[position : position + length]
        position += length
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(parts)
            parts = b""


def history(directory: Path) -> list[dict[str, Any]]:
    """The logged rows of all run files below a directory, in the order of their steps."""
    rows = []
    for path in sorted(directory.rglob("*.wandb")):
        for record in records(path):
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
                rows.append({**row, "_step": record.history.step.num})
    return sorted(rows, key=lambda row: row["_step"])


def facts(directory: Path, kind: str) -> list[Any]:
    """All records of a kind: run, config, summary, exit."""
    found = [record for path in sorted(directory.rglob("*.wandb")) for record in records(path)]
    return [getattr(record, kind) for record in found if record.WhichOneof("record_type") == kind]
