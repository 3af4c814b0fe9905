"""What simulated clients remember: their own models. Past a bound, the longest unused ones are in files."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from polytempo.core.state import load, save
from polytempo_client.personal.rule import ClientMemory

HELD_BYTES = 2 << 30
"""Of memories that stay in memory."""
DIRECTORY = "memories"


class Memories:
    """All clients' memories, newest last. A file is never changed: a checkpoint names those that it needs, and the
    others go when the next checkpoint has been written."""

    def __init__(self, directory: Path | None = None, held_bytes: int = HELD_BYTES) -> None:
        self._directory, self._held_bytes = directory, held_bytes
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._held: dict[int, ClientMemory] = {}
        self._bytes = 0
        self._spilled: dict[int, int] = {}
        """Client -> number of its file."""
        self._files = 0

    def __getitem__(self, client: int) -> ClientMemory | None:
        """What the client remembers; None if it has never trained."""
        if client in self._held:
            return self._held[client]
        return load(self._file(client, self._spilled[client])) if client in self._spilled else None

    def __contains__(self, client: int) -> bool:
        return client in self._held or client in self._spilled

    def keep(self, client: int, memory: ClientMemory) -> None:
        self._spilled.pop(client, None)
        replaced = self._held.pop(client, None)
        self._bytes += memory.nbytes - (0 if replaced is None else replaced.nbytes)
        self._held[client] = memory
        while self._bytes > self._held_bytes and len(self._held) > 1:
            self._spill(next(iter(self._held)))

    def open(self, directory: Path) -> None:
        """Write files into a run's directory, so that a run that goes on finds them."""
        self._directory = directory / DIRECTORY

    def clear(self) -> None:
        """The run has ended: its files go."""
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _spill(self, client: int) -> None:
        memory = self._held.pop(client)
        self._bytes -= memory.nbytes
        self._files += 1
        self._spilled[client] = self._files
        if self._directory is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="polytempo-")
            self._directory = Path(self._temporary.name)
        self._directory.mkdir(exist_ok=True)
        save(memory, self._file(client, self._files))

    def _file(self, client: int, number: int) -> Path:
        assert self._directory is not None
        return self._directory / f"{client}-{number}.safetensors"

    def drop_files(self) -> None:
        """Files that no memory is in any more, nor in the newest checkpoint, which has just been written."""
        if self._directory is not None and self._directory.exists():
            needed = {self._file(client, number) for client, number in self._spilled.items()}
            for path in self._directory.iterdir():
                if path not in needed:
                    path.unlink(missing_ok=True)

    def save_state(self) -> dict[str, Any]:
        return {"held": self._held, "spilled": self._spilled, "files": self._files}

    def load_state(self, saved: dict[str, Any]) -> None:
        self._held, self._spilled, self._files = saved["held"], saved["spilled"], saved["files"]
        self._bytes = sum(memory.nbytes for memory in self._held.values())
        self.drop_files()
