"""Files are replaced whole or not at all."""

import os
from pathlib import Path

import pytest

from polytempo.core.disk.files import make_directory, write_whole
from polytempo.core.disk.new_directory import new_directory
from polytempo_client.disk.files import write_bytes


def test_a_file_is_replaced_with_its_mode_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content, durable in ((b"old", True), (b"new", False)):
        write_bytes(path, content, 0o600, durable=durable)
        assert path.read_bytes() == content
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_whose_writing_fails_stays_as_it_was(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(part: Path) -> None:
        part.write_bytes(b"ne")
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_whole(path, fail, durable=durable)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_only_what_is_durable_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    write_bytes(tmp_path / "file", b"quick", durable=False)
    write_whole(tmp_path / "file", lambda part: None, durable=False)
    assert not synced
    write_bytes(tmp_path / "file", b"safe")
    write_whole(tmp_path / "file", lambda part: None)
    assert len(synced) == 4  # each time the file, and the directory's entry


def test_the_name_of_each_new_directory_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("polytempo.core.disk.files.sync_directory", synced.append)
    make_directory(tmp_path / "a" / "b", 0o700)
    assert sorted(synced) == [tmp_path, tmp_path / "a"]
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    make_directory(tmp_path / "a" / "b", 0o700)  # whoever made it may have been killed before the sync
    assert synced[2:] == [tmp_path / "a"]


def test_a_directory_that_appears_whole_outlasts_a_power_cut_with_those_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("polytempo.core.disk.files.sync_directory", synced.append)
    monkeypatch.setattr("polytempo.core.disk.new_directory.sync_directory", synced.append)
    with new_directory(tmp_path / "a" / "b") as making:
        pass
    assert synced == [tmp_path, making, tmp_path / "a"]


def test_a_directory_may_lie_in_one_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(directory: Path) -> None:
        raise PermissionError(directory)

    monkeypatch.setattr("polytempo.core.disk.files.sync_directory", refuse)
    make_directory(tmp_path / "a")
    assert (tmp_path / "a").is_dir()
