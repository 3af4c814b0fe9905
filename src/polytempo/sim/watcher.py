"""What looks on while a run is simulated."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from polytempo.sim.records.history import History


class Watcher(Protocol):
    """Looks at a run between two events, and changes nothing."""

    def begin(self, config: Mapping[str, Any], history: History, directory: Path | None) -> None:
        """The run begins, or goes on after what is in the history."""

    def look(self, history: History) -> None:
        """Something may have happened since the last look."""
