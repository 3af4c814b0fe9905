"""Structured logs: one JSON object per line. A library is silent until its program sets up logging."""

import json
import logging
import sys
from datetime import datetime, timezone
from typing import Any, TextIO

RESERVED = frozenset({"time", "level", "event", "error"})
"""Names of fields that every line has, or may have."""

_logger = logging.getLogger("polytempo")
_logger.addHandler(logging.NullHandler())


def log(what: str, *, level: int = logging.INFO, error: BaseException | None = None, **fields: Any) -> None:
    """``log("updated", client=3, staleness=2)``"""
    assert RESERVED.isdisjoint(fields), fields
    if _logger.isEnabledFor(level):
        _logger.log(level, what, extra={"fields": fields}, exc_info=error)


def log_to(stream: TextIO | None = None, level: str = "info") -> None:
    """Write logs there (default: stderr), from this level on, and no more to where they went before."""
    write_logs_with(logging.StreamHandler(stream or sys.stderr), level)


def write_logs_with(handler: logging.Handler, level: str) -> None:
    """Let this handler write the logs, and no other."""
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


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)
