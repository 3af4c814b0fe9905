"""Structured logs: one JSON object per line, on a stream or in files of bounded size."""

import json
import logging
import os
import sys
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, TextIO

from polytempo.core.errors import UserError

RESERVED = frozenset({"time", "level", "event", "error"})
"""Names of fields that every line has, or may have."""

_logger = logging.getLogger("polytempo.serve")
logging.getLogger("polytempo").addHandler(
    logging.NullHandler()
)  # a library is silent until its program sets up logging


def log(what: str, *, level: int = logging.INFO, error: BaseException | None = None, **fields: Any) -> None:
    """``log("updated", client=3, staleness=2)``"""
    assert RESERVED.isdisjoint(fields), fields
    if _logger.isEnabledFor(level):
        _logger.log(level, what, extra={"fields": fields}, exc_info=error)


def log_to(stream: TextIO | None = None, level: str = "info") -> None:
    """Write the service's logs there (default: stderr), from this level on, and no more to where they went before."""
    _use(logging.StreamHandler(stream or sys.stderr), level)


def log_to_file(path: Path, level: str = "info", most_bytes: int = 16 << 20, kept: int = 5) -> None:
    """Write the service's logs to this file, which only its owner can read. Before it has more than ``most_bytes`` it
    becomes ``FILE.1``, that becomes ``FILE.2`` and so on, up to ``kept`` old files. Nobody else may rotate it."""
    try:
        handler = _RotatingFile(path, maxBytes=most_bytes, backupCount=kept, encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"Cannot write logs to {path}: {error.strerror}. Choose another file, in a directory that exists."
        ) from None
    _use(handler, level)


def _use(handler: logging.Handler, level: str) -> None:
    handler.setFormatter(_JsonLines())
    if any(_target(old) != _target(handler) for old in _logger.handlers):
        log("log goes elsewhere", level=logging.WARNING, to=_target(handler))
    before, _logger.handlers = _logger.handlers, [handler]
    _logger.setLevel(level.upper())
    _logger.propagate = False
    for old in before:
        old.close()


def _target(handler: logging.Handler) -> str:
    return str(getattr(handler, "baseFilename", "stderr"))


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


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)
