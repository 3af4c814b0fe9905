"""The clients of ``failover.py``, in a process of their own: each hands in one update after the other and tells when it
was acknowledged, and by which server."""

import queue
import random
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from polytempo_client import Client
from polytempo_client.errors import RefusedError

PATIENCE = 120.0
"""Seconds that a request may take before a client counts as stranded."""


class Acknowledged(NamedTuple):
    client: int
    task: int
    at: float
    """On the clock of the machine."""
    server: str
    """The address."""


def run_clients(parent: Connection, tokens: Sequence[Path], servers: Sequence[str], rate: float) -> None:
    """Until the parent says so, or has gone. Sends lists of what was acknowledged, and words about what went wrong."""
    told: queue.SimpleQueue[Acknowledged | str] = queue.SimpleQueue()
    stop = threading.Event()
    pause = len(tokens) / rate
    threads = [
        threading.Thread(target=_client, args=(number, token, servers, pause, told, stop), daemon=True)
        for number, token in enumerate(tokens)
    ]
    for thread in threads:
        thread.start()
    while not parent.poll(0.05):
        _send(parent, told)
    stop.set()
    for thread in threads:
        thread.join(PATIENCE)
    _send(parent, told)
    parent.send(None)


def _send(parent: Connection, told: "queue.SimpleQueue[Acknowledged | str]") -> None:
    news = []
    while not told.empty():
        news.append(told.get())
    if news:
        parent.send(news)


def _client(
    number: int,
    token: Path,
    servers: Sequence[str],
    pause: float,
    told: "queue.SimpleQueue[Acknowledged | str]",
    stop: threading.Event,
) -> None:
    rng = np.random.default_rng(number)
    try:
        with Client(servers, token, insecure=True) as client:
            while not stop.wait(random.expovariate(1 / pause)):
                task = client.task(PATIENCE)
                trained = {name: _moved(rng, values) for name, values in task.tensors.items()}
                client.push(task, trained, samples=10, steps=1, timeout=PATIENCE)
                told.put(Acknowledged(number, task.number, time.time(), client._connection._search.address))
    except RefusedError as error:
        told.put(f"client {number} was refused: {error}")
    except Exception as error:
        told.put(f"client {number} has ended: {error!r}")


def _moved(rng: np.random.Generator, values: Any) -> Any:
    return values + rng.normal(scale=1e-3, size=values.shape).astype(np.float32)
