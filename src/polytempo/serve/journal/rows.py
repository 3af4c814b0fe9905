"""An event as a row of the journal and a safetensors body, and back."""

import json
import zlib
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from polytempo.core.model.vectors import floats
from polytempo.core.state import pack, unpack
from polytempo.serve.state.events import Event, Kind, Push
from polytempo_client.disk.tensor_format import header
from polytempo_client.model.schema import Schema
from polytempo_client.personal.told import JuryScores
from polytempo_client.protocol.bodies import entries_of, entry_of, make_body, memory_of, read_body
from polytempo_client.protocol.framing import Buffer


class EventRow(NamedTuple):
    """One row of the table ``events``: its columns, in order."""

    number: int
    batch: int
    """Number of the first event that was written with this one."""
    at: float
    wall: float
    """When it was written, in seconds since 1970."""
    kind: Kind
    client: int
    detail: str
    """What the event holds beside tensors, as JSON."""
    body: bytes | bytearray | None
    """A small body lies in its row, ..."""
    segment: int | None
    """... a large one in the segment that begins with this event, ..."""
    begins: int | None
    """... from this byte on."""
    size: int
    """Bytes of the body."""
    crc: int
    """Of the row and its body."""
    void: str | None = None
    """Why the event is left out, if it is."""

    def is_intact(self, body: bytes | bytearray | None) -> bool:
        return zlib.crc32(body or b"", _row_crc(self.at, self.kind, self.client, self.detail)) == self.crc


COLUMNS = ", ".join(EventRow._fields)
INSERT = f"INSERT INTO events ({COLUMNS}) VALUES ({', '.join('?' * len(EventRow._fields))})"


@dataclass(frozen=True, slots=True)
class PackedEvent:
    """An event that is ready to be written."""

    event: Event
    detail: str
    body: list[Buffer]
    """In pieces: the weights as they lie in memory, and the tensors of answers."""
    size: int

    def row(
        self, number: int, batch: int, wall: float, segment: int | None = None, begins: int | None = None
    ) -> EventRow:
        """The row. Without a segment the body lies in it."""
        event = self.event
        crc = _row_crc(event.at, event.kind, event.client, self.detail)
        for part in self.body:
            crc = zlib.crc32(part, crc)
        small = b"".join(self.body) if self.body and segment is None else None
        about = (number, batch, event.at, wall, event.kind, event.client, self.detail)
        return EventRow(*about, small, segment, begins, self.size, crc)


def pack_event(event: Event, schema: Schema) -> PackedEvent:
    push = event.push
    if push is None:
        detail = {"key": event.key, "number": event.number} | ({} if event.since is None else {"since": event.since})
        return PackedEvent(event, json.dumps(detail), [], 0)
    text, tensors = pack(push.answers) if push.answers else ("", [])
    arrays = [tensor.numpy() for tensor in tensors]
    entries = entries_of(schema) + tuple(entry_of(f"answer/{i}", array) for i, array in enumerate(arrays))
    told = {
        "task": push.task,
        "base": push.base,
        "samples": push.samples,
        "steps": push.steps,
        "chosen": push.chosen,
        "answers": text,
        "ready": push.ready,
        "accuracy": push.accuracy,
        "loss": push.loss,
        "sent_bytes": push.sent_bytes,
        "sent_seconds": push.sent_seconds,
        **_optional(push),
    }
    body: list[Buffer]
    if arrays:
        body = [header(entries), memory_of(push.weights.numpy()), *map(memory_of, arrays)]
    else:
        body = make_body(entries, [push.weights.numpy()])
    return PackedEvent(event, json.dumps(told), body, sum(map(len, body)))


def _optional(push: Push) -> dict[str, Any]:
    """What most pushes do not have. Rows of earlier versions have none of it."""
    found: dict[str, Any] = {}
    if push.jury is not None:
        jury = push.jury
        found["jury"] = [jury.rows, jury.errors, jury.briers, jury.changed]
    if push.used is not None:
        found |= {"used": push.used, "alone": push.alone}
    return found


def instead_of(row: EventRow) -> Event | None:
    """What happens in place of an event that is void: a timer is gone all the same, anything else did not happen."""
    return Event("dropped", row.at, key=json.loads(row.detail)["key"]) if row.kind == "fired" else None


def unpack_event(row: EventRow, body: bytearray | None, schema: Schema) -> Event:
    detail = json.loads(row.detail)
    if body is None:
        return Event(row.kind, row.at, row.client, None, detail["key"], detail["number"], detail.get("since"))
    begins = 8 + int.from_bytes(body[:8], "little")
    weights = floats(memoryview(body)[begins : begins + 4 * schema.size])
    found = read_body(body) if b'"answer/' in body[:begins] else {}
    tensors = [torch.from_numpy(found[f"answer/{i}"]) for i in range(sum(name.startswith("answer/") for name in found))]
    detail["answers"] = unpack(detail["answers"], tensors) if detail["answers"] else {}
    if "jury" in detail:
        rows, errors, briers, changed = detail["jury"]
        detail["jury"] = JuryScores(rows, tuple(errors), tuple(briers), changed)
    return Event(row.kind, row.at, row.client, Push(weights=weights, **detail))


def _row_crc(at: float, kind: str, client: int, detail: str) -> int:
    return zlib.crc32(f"{at + 0.0!r} {kind} {client} {detail}".encode())
