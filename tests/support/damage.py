"""Damage to files, and to what a journal holds, wherever that is."""

import os
from collections.abc import Callable
from pathlib import Path

from support.postgres import in_schema, is_in_database

Damage = Callable[[Path], None]


def shorten(path: Path) -> None:
    """Cut the last three bytes off."""
    os.truncate(path, path.stat().st_size - 3)


def flip(path: Path) -> None:
    """Change one bit near the end."""
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


IN_SQL = {
    shorten: "UPDATE parts SET data = substring(data FOR length(data) - 3)",
    flip: "UPDATE parts SET data = set_byte(data, length(data) - 5, get_byte(data, length(data) - 5) # 1)",
    Path.unlink: "DELETE FROM parts",
}
"""The same to bytes in a database."""
LAST_BODY = "(SELECT segment FROM events WHERE segment IS NOT NULL ORDER BY number DESC LIMIT 1)"
LAST_SNAPSHOT = "(SELECT blob FROM snapshots ORDER BY number DESC LIMIT 1)"


def damage_last_body(directory: Path, damage: Damage) -> None:
    """Of those that do not lie in their rows."""
    if is_in_database(directory):
        in_schema(directory, f"{IN_SQL[damage]} WHERE blob = {LAST_BODY}")
    else:
        damage([path for path in _files(directory, "*.bodies") if path.stat().st_size][-1])


def damage_last_snapshot(directory: Path, damage: Damage) -> None:
    if is_in_database(directory):
        in_schema(directory, f"{IN_SQL[damage]} WHERE blob = {LAST_SNAPSHOT}")
    else:
        damage(_files(directory, "snapshot-*")[-1])


def damage_snapshots(directory: Path, damage: Damage) -> None:
    """All of them."""
    if is_in_database(directory):
        in_schema(directory, f"{IN_SQL[damage]} WHERE blob IN (SELECT blob FROM snapshots)")
    for path in _files(directory, "snapshot-*"):
        damage(path)


def change_row(directory: Path, column: str, number: int) -> None:
    """Of an event."""
    changed = "replace(detail, '10', '11')" if column == "detail" else f"{column} + 1"
    in_schema(directory, f"UPDATE events SET {column} = {changed} WHERE number = {number}")


def bodies(directory: Path) -> dict[str, bytes]:
    """Those that do not lie in their rows."""
    if is_in_database(directory):
        rows = in_schema(directory, "SELECT number::text, data FROM events JOIN parts ON segment = blob")
        return dict(rows)
    return {path.name: path.read_bytes() for path in _files(directory, "*.bodies")}


def _files(directory: Path, pattern: str) -> list[Path]:
    return sorted((directory / "journal").glob(pattern))
