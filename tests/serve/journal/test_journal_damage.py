"""Damage to a journal is named, never guessed over."""

from pathlib import Path
from typing import Any

import pytest

from polytempo.serve.journal.continuing import Consent
from polytempo.serve.journal.journal import Journal
from polytempo.serve.journal.opening import open_service
from polytempo.serve.storage.errors import DamagedError, JournalError
from support.damage import (
    bodies,
    change_row,
    damage_last_body,
    damage_last_snapshot,
    damage_snapshots,
    flip,
    shorten,
)
from support.postgres import in_files, in_postgres, in_schema
from support.serving import Hosted, hosted, refused, restarted, some_events

pytestmark = pytest.mark.usefixtures("bodies_lie_apart", "store")


@pytest.mark.parametrize("damage", [shorten, flip, Path.unlink])
def test_a_damaged_body_is_named_and_its_tail_is_lost_only_on_request(damage: Any, tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        some_events(served)
        directory = served.copied(tmp_path / "crash")
        damage_last_body(directory, damage)
        before = bodies(directory)
        with pytest.raises(DamagedError, match=r"damaged at event \d+.*Nothing was changed.*--lose-tail"):
            open_service(directory / "journal", served.settings)
        after = bodies(directory)
        assert {name: after[name] for name in before} == before
        again = Hosted(directory, settings=served.settings, consent=Consent(lose_tail=True))
        again.hello(2)
        lost_task = served.task(2)
        assert refused(again.push(2, task=lost_task, base=lost_task), "not yours")
        again.push(2)
        assert again.task(2) > 1_000_000
        again_digest = again.digest()
        again.close()
        assert restarted(directory, served.settings) == again_digest


@pytest.mark.parametrize("column", ["at", "client", "detail"])
def test_a_changed_row_is_noticed(column: str, tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        some_events(served)
    change_row(tmp_path, column, 7)
    with pytest.raises(DamagedError, match="damaged at event 7: its checksum is wrong"):
        open_service(tmp_path / "journal", served.settings)


def test_a_damaged_snapshot_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        some_events(served, 3)
        served.host.snapshots.finish(served.host.service)
        served.push(0)
        directory = served.copied(tmp_path / "crash")
        damage_last_snapshot(directory, flip)
        assert restarted(directory, served.settings) == served.digest()


@pytest.mark.parametrize("lose_tail", [False, True])
def test_without_a_readable_snapshot_nothing_is_guessed_and_nothing_deleted(lose_tail: bool, tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        some_events(served)
        served.host.snapshots.finish(served.host.service)
        directory = served.copied(tmp_path / "crash")
        damage_snapshots(directory, flip)
        with pytest.raises(JournalError, match=r"No snapshot .* can be read. Nothing was changed."):
            open_service(directory / "journal", served.settings, Consent(lose_tail))
        damage_snapshots(directory, flip)
        assert restarted(directory, served.settings) == served.digest()


@in_files
@pytest.mark.parametrize("content", [b"", b"no database at all" * 500])
def test_a_garbled_database_is_a_clear_error(content: bytes, tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        some_events(served)
        served.close()
    database = tmp_path / "journal" / "journal.sqlite"
    database.write_bytes(content or database.read_bytes()[:5000])
    with pytest.raises(JournalError, match=r"cannot be read: .* Restore it from a backup"):
        open_service(tmp_path / "journal", served.settings)


@in_files
@pytest.mark.parametrize("content", [None, b"", b"garbage"])
def test_a_lost_first_model_is_a_clear_error(content: bytes | None, tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        path = served.directory / "initial.safetensors"
        path.unlink() if content is None else path.write_bytes(content)
        served.close()
        with pytest.raises(JournalError, match=r"first model.* cannot be read.*Restore"):
            open_service(served.directory, served.settings)


@in_postgres
@pytest.mark.parametrize("change", ["DELETE FROM files", "DELETE FROM parts", "UPDATE parts SET data = 'garbage'"])
def test_a_first_model_that_the_database_has_lost_is_a_clear_error(change: str, tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        pass
    in_schema(tmp_path, change)
    with pytest.raises(JournalError, match=r"first model.* cannot be read.*Restore"):
        open_service(served.directory, served.settings)


def test_a_crash_while_a_tail_is_given_up_does_not_hide_that_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosted(tmp_path) as served:
        some_events(served)
        directory = served.copied(tmp_path / "crash")
    damage_last_body(directory, shorten)
    replace_tail = Journal.replace_tail

    def replace_and_crash(*arguments: Any) -> None:
        replace_tail(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "replace_tail", replace_and_crash)
        with pytest.raises(KeyboardInterrupt):
            open_service(directory / "journal", served.settings, Consent(lose_tail=True))
    opened = open_service(directory / "journal", served.settings)
    assert opened.service.number > 1_000_000
    opened.journal.close()
