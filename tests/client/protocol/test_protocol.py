"""The generated protocol code is that of the .proto beside it, and old enough for every runtime that clients have."""

from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

from polytempo_client.protocol import wire_pb2
from support import CLIENT

PROTOCOL = CLIENT / "protocol"
COMMAND = "python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. polytempo_client/protocol/wire.proto"
"""In client/src, with grpcio-tools 1.62.3 (protoc 25): what newer ones make refuses older runtimes."""


def described(file: FileDescriptorProto) -> str:
    """Without the names of fields in JSON, which a compiler may add."""
    return "\n".join(line for line in str(file).splitlines() if "json_name" not in line)


def test_the_generated_code_is_that_of_the_proto(tmp_path: Path) -> None:
    out, wire = tmp_path / "descriptors", PROTOCOL / "wire.proto"
    assert protoc.main(["protoc", f"-I{CLIENT.parent}", f"--descriptor_set_out={out}", str(wire)]) == 0
    (made,) = FileDescriptorSet.FromString(out.read_bytes()).file
    assert described(FileDescriptorProto.FromString(wire_pb2.DESCRIPTOR.serialized_pb)) == described(made), COMMAND


def test_the_types_beside_the_generated_code_know_every_field() -> None:
    types = (PROTOCOL / "wire_pb2.pyi").read_text()
    fields = [field.name for message in wire_pb2.DESCRIPTOR.message_types_by_name.values() for field in message.fields]
    assert [field for field in fields if f"    {field}: " not in types] == []


def test_the_generated_code_asks_for_no_version_of_the_runtime() -> None:
    text = (PROTOCOL / "wire_pb2.py").read_text()
    assert "# Protobuf Python Version: 4.25" in text, COMMAND
    assert "runtime_version" not in text, COMMAND
