"""Another version of the code goes on from snapshots and never replays."""

import importlib
import sys
from pathlib import Path

import pytest

from polytempo.core.registry import source_file
from polytempo.core.state import digest
from polytempo.serve.journal import opening
from polytempo.serve.journal.continuing import Consent
from polytempo.serve.journal.journal import Journal
from polytempo.serve.journal.opening import open_service
from polytempo.serve.journal.recovery import recover
from polytempo.serve.storage.errors import JournalError
from polytempo.strategies.base.strategy import strategy_class
from support.damage import damage_last_snapshot, flip
from support.serving import Hosted, hosted, restarted, some_events

pytestmark = pytest.mark.usefixtures("bodies_lie_apart", "store")


def as_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "code_versions", lambda _: {"code": "another"})


def test_another_version_does_not_replay_a_tail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hosted(tmp_path) as served:
        some_events(served, 3)
        served.host.snapshots.finish(served.host.service)
        at_snapshot, old_task = served.digest(), served.task(0)
        served.push(0)
        directory = served.copied(tmp_path / "crash")
        as_another_version(monkeypatch)
        with pytest.raises(JournalError, match=r"another version \(code changed\).* 1 events after .*--lose-tail"):
            open_service(directory / "journal", served.settings)
        again = Hosted(directory, settings=served.settings, consent=Consent(lose_tail=True))
        assert digest(again.host.service.strategy.save_state()) == digest(
            recover(served.host.journal, served.opened.begin, served.host.journal.last - 1).strategy.save_state()
        )
        assert again.digest() != at_snapshot
        again.hello(0)
        assert again.task(0) == old_task
        again.push(0)
        assert again.task(0) > 1_000_000
        assert restarted(again.copied(tmp_path / "again"), served.settings) == again.digest()
        again.close()


def test_another_version_goes_on_where_a_snapshot_is_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hosted(tmp_path) as served:
        some_events(served)
        served.host.snapshots.finish(served.host.service)
        before = served.digest()
    as_another_version(monkeypatch)
    assert restarted(tmp_path, served.settings) == before
    again = Journal(tmp_path / "journal")
    assert again.about["versions"] == {"code": "another"}
    assert again.snapshots() == [again.last]
    again.close()


def test_another_version_never_replays_because_a_snapshot_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosted(tmp_path) as served:
        some_events(served)
        served.host.snapshots.finish(served.host.service)
    damage_last_snapshot(tmp_path, flip)
    as_another_version(monkeypatch)
    with pytest.raises(JournalError, match="another version"):
        open_service(tmp_path / "journal", served.settings)


METHOD = """from polytempo.strategies import Strategy

class Mixing(Strategy):
    def updated(self, update, now):
        self.model.mix(update.weights, {mixing})
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of the user's on PYTHONPATH, with a method."""
    path = tmp_path / "own_methods" / "mixing.py"
    path.parent.mkdir()
    (path.parent / "__init__.py").touch()
    path.write_text(METHOD.format(mixing=0.5))
    monkeypatch.syspath_prepend(str(tmp_path))
    return path


def forget_modules() -> None:
    """As another process would begin."""
    for name in ("own_methods.mixing", "own_methods"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


def test_a_method_that_was_edited_in_its_module_is_another_version(tmp_path: Path, own_module: Path) -> None:
    with hosted(tmp_path, "own_methods.mixing:Mixing") as served:
        some_events(served)
        directory = served.copied(tmp_path / "crash")
        own_module.write_text(METHOD.format(mixing=0.125))
        forget_modules()
        with pytest.raises(JournalError, match="--accept-version"):
            open_service(directory / "journal", served.settings)
        opened = open_service(directory / "journal", served.settings, Consent(accept_version=True))
        assert opened.service.updates == served.host.service.updates
        assert opened.service.digest() != served.digest()
        opened.journal.close()
    forget_modules()


def test_the_code_of_a_module_is_found_before_and_after_it_is_imported(own_module: Path) -> None:
    forget_modules()
    assert source_file("own_methods.mixing:Mixing") == own_module
    strategy_class("own_methods.mixing:Mixing")
    assert source_file("own_methods.mixing:Mixing") == own_module
    assert source_file("fedasync") is None
    forget_modules()
