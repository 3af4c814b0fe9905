"""The page of the protocol names every message and every field, and that of `polytempo conform` every point."""

import re

import pytest

from polytempo.serve.conform.points import points
from polytempo_client.protocol import wire_pb2
from support import ROOT

PAGE = (ROOT / "docs/reference/protocol.md").read_text()
MESSAGES = wire_pb2.DESCRIPTOR.message_types_by_name


@pytest.mark.parametrize("name", MESSAGES)
def test_the_page_names_every_field_of_a_message(name: str) -> None:
    words = set(re.findall(r"\w+", PAGE))
    assert name in words
    kinds = {field.name for field in MESSAGES["Head"].oneofs_by_name["kind"].fields}
    fields = {field.name for field in MESSAGES[name].fields} - (kinds if name == "Head" else set())
    assert fields <= words, fields - words


def test_the_page_of_the_judge_lists_its_points() -> None:
    page = (ROOT / "docs/reference/conform.md").read_text()
    listed = re.findall(r"^\| `([a-z][a-z0-9-]+)` \| (.*) \|$", page, re.MULTILINE)
    assert listed == [(point.name, point.title) for point in points.values()]
