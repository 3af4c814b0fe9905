"""Where commands write, and how to go on from there."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import typer


def new_directory(name: str) -> Path:
    """A directory under runs/ that does not exist yet."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    candidates = (Path("runs") / f"{stamp}-{name}{suffix}" for suffix in ["", *(f"-{i}" for i in range(2, 1000))])
    return next(path for path in candidates if not path.exists())


@contextmanager
def continuable(same: str) -> Iterator[None]:
    """Ctrl-C ends with 130 and says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"polytempo: stopped. The same command with {same} goes on from here.", file=sys.stderr)
        raise typer.Exit(130) from None
