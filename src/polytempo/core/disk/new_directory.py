"""A directory that appears when it is whole."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from polytempo.core.disk.files import make_directory
from polytempo.core.errors import UserError
from polytempo_client.disk.files import sync_directory


@contextmanager
def new_directory(to: Path) -> Iterator[Path]:
    """A directory to fill, which becomes ``to`` when that is done, and is on disk then. ``to`` must not exist or be
    empty. If it fails, nothing is left. Whoever writes files into it syncs them. An OSError is told in plain words."""
    if to.exists() and not (to.is_dir() and not any(to.iterdir())):
        raise UserError(f"{to} exists already. Nothing was changed. Expected a new or an empty directory.")
    try:
        make_directory(to.parent)
        making = Path(tempfile.mkdtemp(prefix=f".{to.name}.", dir=to.parent))
        try:
            yield making
            sync_directory(making)
            making.rename(to)
            sync_directory(to.parent)
        except BaseException:
            shutil.rmtree(making, ignore_errors=True)
            raise
    except OSError as error:
        raise UserError(
            f"Cannot write to {to}: {error.strerror} ({error.filename}). Choose another directory, or make room."
        ) from None
