"""Structured logs: one JSON object per line."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

_logger = logging.getLogger("polytempo.serve")


def log(what: str, *, level: int = logging.INFO, error: BaseException | None = None, **fields: Any) -> None:
    """``log("updated", client=3, staleness=2)``"""
    if _logger.isEnabledFor(level):
        _logger.log(level, what, extra={"fields": fields}, exc_info=error)


def log_to(stream: TextIO | None = None, level: str = "info") -> None:
    """Write the service's logs there (default: stderr), from this level on."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonLines())
    _logger.handlers = [handler]
    _logger.setLevel(level.upper())
    _logger.propagate = False


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        said = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            said["error"] = self.formatException(record.exc_info)
        return json.dumps(said, default=str)
