"""A service with everything that the command line gives it, listeners and files included, in a thread of the test's."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from polytempo.serve.paths import OPERATIONS
from polytempo.serve.process.options import Endpoints, Listening, ServeOptions
from polytempo.serve.process.running import serve
from polytempo_client.client import Client
from support.serving import tiny_settings, until

LOG = '[log]\nfile = "service.log"\n'


class Service:
    """``serve`` in a thread; its log goes to ``service.log`` unless the test says otherwise."""

    def __init__(self, directory: Path, endpoints: Endpoints) -> None:
        self.directory, self._endpoints = directory, endpoints
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._ready.wait(30)

    async def _serve(self) -> None:
        self._loop, self._stop, self._again = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        options = ServeOptions(self.directory, tiny_settings(self.directory), self._endpoints)
        await serve(options, self._stop, self._again, self._listening)

    def _listening(self, at: Listening) -> None:
        self.address, self.admin = at.address, at.admin
        self._ready.set()

    def logged(self, event: str, log: str = "service.log") -> list[dict[str, Any]]:
        rows = [json.loads(line) for line in (self.directory / log).read_text().splitlines()]
        return [row for row in rows if row["event"] == event]

    def reload(self, text: str, log: str = "service.log", event: str = "reloaded") -> None:
        """Read this file, and wait for the word that it was, or was not, taken."""
        before = len(self.logged(event, log)) if (self.directory / log).exists() else 0
        (self.directory / OPERATIONS).write_text(text)
        self.read_again()
        until(lambda: (self.directory / log).exists() and len(self.logged(event, log)) > before)

    def read_again(self) -> None:
        self._loop.call_soon_threadsafe(self._again.set)

    def client(self, number: int, **given: Any) -> Client:
        token = self.directory / f"client-{number}.token"
        if self._endpoints.insecure:
            return Client(self.address, token, insecure=True, **given)
        return Client(self.address, token, self.directory / "ca.pem", **given)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


@contextmanager
def whole(directory: Path, endpoints: Endpoints | None = None) -> Iterator[Service]:
    """The directory has to hold tokens, and certificates where the endpoints need them."""
    if not (directory / OPERATIONS).exists():
        (directory / OPERATIONS).write_text(LOG)
    started = Service(directory, endpoints or Endpoints("127.0.0.1:0", insecure=True))
    try:
        yield started
    finally:
        started.stop()
