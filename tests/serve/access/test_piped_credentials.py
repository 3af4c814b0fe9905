"""Credentials that come through a pipe."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from polytempo.serve.access.certs import make_certs
from polytempo_client.session.credentials import read_token
from polytempo_client.session.tls import client_credentials


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[tuple[Path, Callable[[bytes], None]]]:
    """As the shell's ``<(...)`` makes one, and how to write to it."""
    reading, writing = os.pipe()

    def write(content: bytes) -> None:
        os.write(writing, content)
        os.close(writing)

    yield Path(f"/dev/fd/{reading}"), write
    os.close(reading)


def test_a_token_may_come_from_a_pipe(pipe: tuple[Path, Callable[[bytes], None]]) -> None:
    path, write = pipe
    write(b"secret\n")
    assert read_token(path) == "secret"


def test_the_servers_authority_may_come_from_a_pipe(tmp_path: Path, pipe: tuple[Path, Callable[[bytes], None]]) -> None:
    path, write = pipe
    make_certs(tmp_path, [])
    write((tmp_path / "ca.pem").read_bytes())
    client_credentials(path)
