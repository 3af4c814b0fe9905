"""The generated protocol code is that of the .proto beside it."""

import sys
from pathlib import Path

from grpc_tools import protoc

import polytempo

PROTOCOL = Path(polytempo.__file__).parent / "serve" / "protocol"


def test_the_generated_code_is_that_of_the_proto(tmp_path):
    root = str(PROTOCOL.parent.parent.parent)
    arguments = [f"-I{root}", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", str(PROTOCOL / "wire.proto")]
    assert protoc.main(["protoc", *arguments]) == 0
    for name in ("wire_pb2.py", "wire_pb2.pyi"):
        made = (tmp_path / "polytempo" / "serve" / "protocol" / name).read_text()
        assert made == (PROTOCOL / name).read_text(), f"run {sys.executable} -m grpc_tools.protoc again"
