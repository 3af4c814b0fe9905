"""Methods that harm the process they run in, when an update's answers say so."""

import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch

from polytempo.core.events import Update
from polytempo.core.orders import Orders, Send, SetTimer
from polytempo.strategies import Strategy

RELEASED = threading.Event()
"""Ends the waiting of a method that hangs in the test's own process."""


class Bad(Strategy):
    """Mixes updates as FedAsync does. ``harm`` in the answers: ``wait`` hangs until it is released, ``loop`` hangs in
    Python, ``freeze`` in C with the GIL, ``die`` ends the process, ``leave`` leaves a thread of
    an executor behind, ``exit`` raises SystemExit, ``hoard`` uses up the
    memory, ``interrupt`` raises what no ``except Exception`` catches. Client 9 sets a timer that fails."""

    mixing = 0.5

    def joined(self, client: int, now: float) -> Orders:
        super().joined(client, now)
        return [SetTimer(now + 10.0, "break"), SetTimer(now + 20.0, "fine")] if client == 9 else None

    def updated(self, update: Update, now: float) -> None:
        self.model.mix(update.weights, self.mixing)
        harm = update.answers.get("harm")
        if harm == "wait":
            RELEASED.wait()
        elif harm == "loop":
            while True:
                time.sleep(0.01)
        elif harm == "freeze":
            sum(range(10**15))
        elif harm == "die":
            os._exit(9)
        elif harm == "leave":
            ThreadPoolExecutor().submit(RELEASED.wait)
        elif harm == "exit":
            sys.exit("enough")
        elif harm == "hoard":
            raise MemoryError("no more")
        elif harm == "interrupt":
            raise KeyboardInterrupt

    def fired(self, key: str, now: float) -> None:
        if key == "break":
            raise ZeroDivisionError(key)
        self.model.version += 1


class Restless(Strategy):
    """Each timer sets the next one, for now."""

    def setup(self) -> None:
        self.fired_times = 0

    def joined(self, client: int, now: float) -> Orders:
        super().joined(client, now)
        return [SetTimer(now, "again")]

    def fired(self, key: str, now: float) -> Orders:
        self.fired_times += 1
        return [SetTimer(now, "again")]


class Clinging(Strategy):
    """Fails when a client leaves."""

    def left(self, client: int, now: float) -> Orders:
        raise ZeroDivisionError("stay")


class Refreshing(Bad):
    """Sends each new model to whoever is in training."""

    def updated(self, update: Update, now: float) -> Orders:  # type: ignore[override]
        super().updated(update, now)
        for client, busy in self.participation.members.items():
            if busy and client != update.client:
                yield Send(client, self.model.weights, self.model.version)


class Unusable(Bad):
    """Sends what cannot be sent. ``harm`` in the answers: ``gradient`` sends a model that requires its gradient. Timers
    and departures send client 0 a model of complex numbers."""

    def updated(self, update: Update, now: float) -> Orders:  # type: ignore[override]
        super().updated(update, now)
        if update.answers.get("harm") == "gradient":
            yield Send(update.client, self.model.weights.clone().requires_grad_(), self.model.version)

    def fired(self, key: str, now: float) -> Orders:  # type: ignore[override]
        self.model.version += 1
        yield Send(0, self.model.weights.to(torch.complex64), self.model.version)

    def left(self, client: int, now: float) -> Orders:
        super().left(client, now)
        yield Send(0, self.model.weights.to(torch.complex64), self.model.version)


class Unpackable(Bad):
    """Keeps what no snapshot can hold, from its first update on."""

    def setup(self) -> None:
        self.seen: set[int] | None = None

    def updated(self, update: Update, now: float) -> None:
        super().updated(update, now)
        self.seen = {update.client}


def mended(method: Bad, update: Update, now: float) -> None:
    """``Bad.updated`` without the harm."""
    method.model.mix(update.weights, method.mixing)
