"""A server on loopback inside the test, and clients that pretend to train."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from polytempo.serve.access import Roster, make_tokens, read_token
from polytempo.serve.client import Client, Task
from polytempo.serve.host import Host
from polytempo.serve.opening import open_service
from polytempo.serve.server import Server
from polytempo.serve.settings import ServiceSettings, make_settings


class Running:
    """A server in a thread of its own."""

    def __init__(self, directory: Path, settings: ServiceSettings, seconds: Callable[[], float], port: int) -> None:
        self.directory, self.settings = directory, settings
        self._seconds = seconds
        self._started = threading.Event()
        self._error: BaseException | None = None
        self.port = port
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._started.wait(30)
        if self._error is not None:
            raise self._error

    async def _serve(self) -> None:
        try:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            opened = open_service(self.directory / "journal", self.settings)
            self.server = Server(
                lambda flush: Host(opened, self.settings.norm_bound, self.settings.patience, self._seconds, flush),
                Roster.read(self.directory / "clients.json"),
            )
            self.host = self.server.host
            self.port = self.server.listen(f"127.0.0.1:{self.port}", None)
            self._loop.call_later(0.05, self._started.set)
            await self.server.serve(self._stop)
        except BaseException as error:
            self._error = error
            self._started.set()

    def client(self, number: int) -> Client:
        token = read_token(self.directory / f"client-{number}.token")
        return Client(f"127.0.0.1:{self.port}", token, insecure=True)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


def tiny_settings(directory: Path, strategy: str = "fedasync", **given: Any) -> ServiceSettings:
    """A model of six numbers in two tensors."""
    init = directory / "init.safetensors"
    if not init.exists():
        save_file({"weight": np.arange(4, dtype=np.float32).reshape(2, 2), "bias": np.zeros(2, np.float32)}, init)
    return make_settings(**{"strategy": strategy, "init": init, "steps": 4, **given})


@contextmanager
def running(
    directory: Path,
    strategy: str = "fedasync",
    clients: int = 3,
    seconds: Callable[[], float] = time.monotonic,
    port: int = 0,
    **given: Any,
) -> Iterator[Running]:
    if not (directory / "clients.json").exists():
        make_tokens(directory, clients)
    server = Running(directory, tiny_settings(directory, strategy, **given), seconds, port)
    try:
        yield server
    finally:
        server.stop()


def nudge(task: Task, by: float = 0.1) -> dict[str, np.ndarray]:
    """What training might have made of a task's model."""
    return {name: array + np.float32(by) for name, array in task.tensors.items()}
