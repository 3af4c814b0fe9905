"""The welcome with which a server begins a session: it tells the client the names and shapes of all tensors at once."""

from polytempo_client.errors import UserError
from polytempo_client.model.schema import Schema
from polytempo_client.protocol import wire_pb2 as pb
from polytempo_client.protocol.framing import FRAME_BYTES, LARGEST_HEAD, PROTOCOL


def make_welcome(client: int, schema: Schema, seed: int, task: int, upload: str = "", download: str = "") -> pb.Welcome:
    return pb.Welcome(
        client=client,
        names=schema.names,
        shapes=[pb.Shape(sizes=shape) for shape in schema.shapes],
        parameters=schema.parameter_count,
        seed=seed,
        task=task,
        upload=upload,
        download=download,
        frozen=schema.frozen,
        frame_bytes=FRAME_BYTES,
        protocol=PROTOCOL,
    )


def schema_in(welcome: pb.Welcome) -> Schema:
    """What the server's model looks like."""
    shapes = tuple(tuple(shape.sizes) for shape in welcome.shapes)
    return Schema(tuple(welcome.names), shapes, welcome.parameters, welcome.frozen)


def check_welcome_fits(schema: Schema) -> None:
    """Raise a UserError if the names and shapes of the tensors do not fit into a welcome."""
    size = pb.Head(welcome=make_welcome(0, schema, 0, 0)).ByteSize()
    if size > LARGEST_HEAD // 2:
        raise UserError(
            f"The model has {len(schema.names)} tensors, whose names and shapes take {size} bytes; expected at most "
            f"{LARGEST_HEAD // 2}. Give the tensors shorter names, or the model fewer."
        )
