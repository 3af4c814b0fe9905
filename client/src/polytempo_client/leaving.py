"""How a program that takes part ends: by signals, and with a goodbye."""

import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from polytempo_client.client import Client
from polytempo_client.errors import SpentError, UserError
from polytempo_client.logs import log

GOODBYE_SECONDS = 2.0


@contextmanager
def stopped_by_signals(program: str) -> Iterator[None]:
    """SIGTERM is as good as Ctrl-C, and both are a good end."""
    # A shell lets its background jobs ignore SIGINT; who sends it to us means us.
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except KeyboardInterrupt:
        print(f"{program}: stopped.", file=sys.stderr)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def until_spent() -> Iterator[None]:
    """That a client has given what it may is a good end."""
    try:
        yield
    except SpentError as spent:
        log("stops", level=logging.WARNING, reason=str(spent))


@contextmanager
def goodbye(client: Client) -> Iterator[None]:
    """Leave at the end, whatever the reason, unless the open task is kept or the server cannot be told."""
    leaves = not client.keeps_task
    try:
        yield
    except SpentError:  # it will not come back for its task
        leaves = True
        raise
    finally:
        if leaves:
            with suppress(UserError, TimeoutError):
                client.leave(GOODBYE_SECONDS)
