"""The client program that is judged: a command that is started with what it needs to know in its environment."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from polytempo.core.errors import UserError

STOP_SECONDS = 5.0
"""For the program to end by itself."""
LAST_WORDS = 600
"""Characters of what it printed that are quoted."""


class Program:
    """One run of it. What it prints goes to a file."""

    def __init__(self, command: Sequence[str], told: Mapping[str, str], output: Path) -> None:
        self._output = output
        with output.open("ab") as file:
            try:
                self._process = subprocess.Popen(
                    command,
                    env={**os.environ, **told},
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # what it starts itself is ended with it
                )
            except OSError as error:
                raise UserError(f"{command[0]!r} cannot be started: {error.strerror}.") from None

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def end(self) -> str:
        """How it ended by itself, in words."""
        printed = self._output.read_text(errors="replace").strip()
        said = f" It printed: ...{printed[-LAST_WORDS:]}" if printed else " It printed nothing."
        return f"the program ended by itself with exit code {self.exit_code}.{said}"

    def kill(self) -> None:
        """As if the power went out."""
        self._signal("SIGKILL")
        self._process.wait()

    def stop(self) -> None:
        """Ask it to end, and end it if it does not."""
        if self.exit_code is None:
            self._signal("SIGTERM")
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()

    def _signal(self, name: str) -> None:
        if sys.platform == "win32":
            self._process.kill()
        elif self.exit_code is None:
            os.killpg(self._process.pid, getattr(signal, name))
