"""For the tests of journals."""

import pytest

from polytempo.serve.journal.files import store as store_module


@pytest.fixture
def bodies_lie_in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small bodies of tests too."""
    monkeypatch.setattr(store_module, "SMALL_BYTES", 0)
