"""The lead of a service: a lease that a thread renews for as long as the process may write."""

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from polytempo.serve.storage import lease
from polytempo.serve.storage.address import PostgresAddress
from polytempo.serve.storage.database import Connection, connect, told_in_words
from polytempo.serve.storage.errors import JournalError, TakenError
from polytempo_client.logs import log

T = TypeVar("T")
LEASE_SECONDS = 10.0
"""Of a command, which holds the lease for as long as it works."""
RENEWALS = 3
"""In the time of a lease."""


def new_holder() -> str:
    """A name for this process that no other has, short enough for the database to show beside its connections."""
    return f"polytempo {socket.gethostname()[:24]} {os.getpid()} {secrets.token_hex(4)}"


class Lead:
    """Held from when it is made until it is given up, or until another server takes it."""

    def __init__(self, address: PostgresAddress, holder: str, seconds: float) -> None:
        """TakenError if another server has it."""
        self.holder = holder
        self._address, self._seconds = address, seconds
        self._connection: Connection | None = None
        self._given_up = threading.Event()
        self._held_until = time.monotonic() + seconds  # before the database counts: never later than there
        epoch = self._ask(lambda connection: lease.take(connection, holder, seconds))
        if epoch is None:
            self._close()
            raise TakenError(f"Another server leads the service in {address}.")
        self.epoch = epoch
        self._thread = threading.Thread(target=self._renew, name="polytempo-lease", daemon=True)
        self._thread.start()

    @property
    def is_held(self) -> bool:
        """Is it sure that nobody else has it? Whoever asks may be late: what is written is checked by the database."""
        return time.monotonic() < self._held_until

    def give_up(self, to: str | None = None) -> bool:
        """Let another server have it: this one, or whoever comes first. Returns whether it was there to be given."""
        self._given_up.set()
        self._thread.join(max(self._held_until - time.monotonic(), 0.0))
        if self._thread.is_alive() or not self.is_held:
            return False  # the thread waits for the database, and closes its connection
        self._held_until = 0.0
        try:
            return self._ask(lambda connection: self._give(connection, to))
        except JournalError as error:
            log("hand-over failed", level=logging.WARNING, reason=str(error))
            return False
        finally:
            self._close()

    def _give(self, connection: Connection, to: str | None) -> bool:
        if to is not None:
            return lease.hand_over(connection, self.epoch, self.holder, to, self._seconds)
        lease.release(connection, self.epoch, self.holder)
        return True

    def _renew(self) -> None:
        """A database that does not answer is asked again: the lease may still be held when it does."""
        pause = self._seconds / RENEWALS
        while not self._given_up.wait(pause):
            began, pause = time.monotonic(), self._seconds / RENEWALS
            try:
                held = self._ask(lambda it: lease.renew(it, self.epoch, self.holder, self._seconds))
            except JournalError as error:
                log("lease not renewed", level=logging.WARNING, reason=str(error))
                pause = self._seconds / RENEWALS / 4
                continue
            self._held_until = began + self._seconds if held else 0.0
            if not held:
                break
        if not self.is_held:
            self._close()

    def _ask(self, question: Callable[[Connection], T]) -> T:
        """Over the connection that there is, or another one if it is broken."""
        try:
            if self._connection is None:
                self._connection = connect(self._address, self.holder)
            with told_in_words(self._address):
                return question(self._connection)
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
