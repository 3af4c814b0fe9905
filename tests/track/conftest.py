"""For tests of callbacks: reports, which take most of the time of a small run, are a stub."""

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _reports_are_stubs(monkeypatch: pytest.MonkeyPatch) -> None:
    def write_report(runs: Any, path: Path, title: str, graph_at: Any = ()) -> Path:
        path.write_text(title)
        return path

    monkeypatch.setattr("polytempo.report.page.write_report", write_report)
