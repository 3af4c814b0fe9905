"""For all tests."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from polytempo.serve.journal.files import store as files
from polytempo.serve.journal.postgres import store as database_store
from polytempo.sim import run as run_module
from polytempo_client.session import search as search_module
from support.clusters import PRIVATE
from support.postgres import Server, postgres
from support.serving import Running, running

settings.register_profile("untimed", deadline=None)  # no test is timed: machines are busy, and first calls compile
settings.load_profile("untimed")
os.environ.update(PRIVATE)  # Ray reads it when it is imported


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from support.scheduling import OneCluster  # here, because a run in one process needs no pytest-xdist

    return OneCluster(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test of a service in PostgreSQL asks for the server, or for that store."""
    for item in items:
        chosen = item.callspec.params.get("store") if hasattr(item, "callspec") else None
        if chosen == "postgres" or "database" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.postgres)


@pytest.fixture(autouse=True)
def _logs_go_where_they_went() -> Iterator[None]:
    """A test that runs a command, which says where logs go, says so for no other test."""
    logger = logging.getLogger("polytempo")
    before = list(logger.handlers), logger.propagate, logger.level
    yield
    logger.handlers, logger.propagate, logger.level = before
    logger.manager._clear_cache()  # type: ignore[attr-defined]


@pytest.fixture(scope="session")
def database() -> Iterator[Server]:
    """A PostgreSQL server, one for all tests of a process."""
    with postgres() as server:
        yield server


@pytest.fixture(params=["files", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The service in the test's directory is kept in files, and then in a database."""
    if request.param == "postgres":
        request.getfixturevalue("database").new_store(tmp_path)
    return str(request.param)


@pytest.fixture
def bodies_lie_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """No body lies in its row, also not the small ones of tests."""
    monkeypatch.setattr(files, "SMALL_BYTES", 0)
    monkeypatch.setattr(database_store, "PART_BYTES", 16)


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that lost their server try again at once."""
    monkeypatch.setattr(search_module, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(search_module, "LONGEST_PAUSE", 0.05)


@pytest.fixture
def every_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let time pass so quickly that checkpoints and progress come after every event of a run."""
    ticks = iter(range(10**9))
    monkeypatch.setattr(run_module.time, "perf_counter", lambda: float(next(ticks)))


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Any]:
    """A server for the linear model, or for the one named."""
    opened = []

    def begin(strategy: str, **given: Any) -> Running:
        settings = {
            "init": None,
            "model": "support.joining:linear",
            "data": "support.joining:data",
            "steps": None,
            "batch_size": 4,
            **given,
        }
        opened.append(running(tmp_path, strategy, **settings))
        return opened[-1].__enter__()

    yield begin
    for server in opened:
        server.__exit__(None, None, None)
