"""Damage to files."""

import os
from pathlib import Path


def shorten(path: Path) -> None:
    """Cut the last three bytes off."""
    os.truncate(path, path.stat().st_size - 3)


def flip(path: Path) -> None:
    """Change one bit near the end."""
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
