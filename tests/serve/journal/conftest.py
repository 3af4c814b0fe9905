"""For the tests of journals."""

import pytest

from polytempo.serve.journal.files import store as files
from polytempo.serve.journal.postgres import store as postgres


@pytest.fixture
def bodies_lie_in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small bodies of tests too."""
    monkeypatch.setattr(files, "SMALL_BYTES", 0)
    monkeypatch.setattr(postgres, "PART_BYTES", 16)
