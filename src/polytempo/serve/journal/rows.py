"""An event as a row of the journal and a safetensors body, and back."""

import json
from typing import Any

import torch

from polytempo.core.schema import Schema
from polytempo.core.state import pack, unpack
from polytempo.core.tensor_format import header
from polytempo.core.vectors import floats
from polytempo.serve.protocol.bodies import entries_of, entry_of, make_body, memory_of, read_body
from polytempo.serve.protocol.framing import Buffer
from polytempo.serve.state.events import Event, Handed


def packed(event: Event, schema: Schema) -> tuple[str, list[Buffer]]:
    """The row's detail as JSON, and the body in pieces: the weights as they lie in memory, and answers' tensors."""
    handed = event.handed
    if handed is None:
        return json.dumps({"key": event.key, "number": event.number}), []
    text, tensors = pack(handed.answers) if handed.answers else ("", [])
    arrays = [tensor.numpy() for tensor in tensors]
    entries = entries_of(schema) + tuple(entry_of(f"answer/{i}", array) for i, array in enumerate(arrays))
    detail = {
        "task": handed.task,
        "base": handed.base,
        "samples": handed.samples,
        "steps": handed.steps,
        "chosen": handed.chosen,
        "answers": text,
        "ready": handed.ready,
        "accuracy": handed.accuracy,
        "loss": handed.loss,
    }
    if not arrays:
        return json.dumps(detail), make_body(entries, [handed.weights.numpy()])
    return json.dumps(detail), [header(entries), memory_of(handed.weights.numpy()), *map(memory_of, arrays)]


def unpacked(at: float, kind: Any, client: int, detail: str, body: bytearray | None, schema: Schema) -> Event:
    said = json.loads(detail)
    if body is None:
        return Event(kind, at, client, None, said["key"], said["number"])
    begins = 8 + int.from_bytes(body[:8], "little")
    weights = floats(memoryview(body)[begins : begins + 4 * schema.size])
    found = read_body(body) if b'"answer/' in body[:begins] else {}
    tensors = [torch.from_numpy(found[f"answer/{i}"]) for i in range(sum(name.startswith("answer/") for name in found))]
    answers = unpack(said["answers"], tensors) if said["answers"] else {}
    handed = Handed(
        said["task"],
        said["base"],
        weights,
        said["samples"],
        said["steps"],
        said["chosen"],
        answers,
        said["ready"],
        said.get("accuracy"),
        said.get("loss"),
    )
    return Event(kind, at, client, handed)
