"""Logs in files of bounded size."""

import logging
import os
import sys
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from polytempo.core.errors import UserError
from polytempo_client.logs import write_logs_with


def log_to_file(path: Path, level: str = "info", most_bytes: int = 16 << 20, kept: int = 5) -> None:
    """Write the service's logs to this file, which only its owner can read. Before it has more than ``most_bytes`` it
    becomes ``FILE.1``, that becomes ``FILE.2`` and so on, up to ``kept`` old files. Nobody else may rotate it."""
    try:
        handler = _RotatingFile(path, maxBytes=most_bytes, backupCount=kept, encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"Cannot write logs to {path}: {error.strerror}. Choose another file, in a directory that exists."
        ) from None
    write_logs_with(handler, level)


class _RotatingFile(RotatingFileHandler):
    """Says once on stderr that it cannot write, and goes on when it can: a full disk stops nothing."""

    _failing = False

    def flush(self) -> None:
        super().flush()
        self._failing = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        if not self._failing:
            self._failing = True
            print(f"polytempo: The log {self.baseFilename} cannot be written: {sys.exc_info()[1]}.", file=sys.stderr)

    def _open(self) -> TextIOWrapper:
        opened = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return open(opened, "a", encoding="utf-8")
