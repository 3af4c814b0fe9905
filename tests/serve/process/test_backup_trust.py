"""Whoever can write where backups lie can do harm to the backups, and to nothing else."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from polytempo.cli.main import app
from polytempo.core.disk import files
from polytempo.core.errors import UserError
from polytempo.serve.access.roster import Roster
from polytempo.serve.access.signing import make_backup_key
from polytempo.serve.access.tokens import make_tokens
from polytempo.serve.journal import copying
from polytempo.serve.paths import ACCESS, BACKUP_KEY, BACKUP_PUBLIC_KEY, DATABASE
from polytempo.serve.process import backup, backup_files
from polytempo.serve.process.backup import back_up, restore
from support.serving import hosted, some_events


@pytest.fixture
def service(tmp_path: Path) -> Path:
    """The directory of a service that has stopped, with a key that signs backups."""
    directory = tmp_path / "service"
    directory.mkdir()
    with hosted(directory) as host:
        some_events(host)
    make_tokens(directory, 2)
    (directory / "service.toml").write_text("# settings")
    make_backup_key(directory)
    return directory


@pytest.fixture
def copy(service: Path, tmp_path: Path) -> Path:
    """A signed backup of it."""
    assert back_up(service, tmp_path / "copy").signed
    return tmp_path / "copy"


@pytest.fixture
def elsewhere(service: Path, tmp_path: Path) -> Path:
    """A directory to restore to, with the public key that was kept apart from the backup."""
    (tmp_path / "elsewhere").mkdir()
    shutil.copy(service / BACKUP_PUBLIC_KEY, tmp_path / "elsewhere")
    return tmp_path / "elsewhere"


def untouched(directory: Path) -> bool:
    return [path.name for path in directory.iterdir()] == [BACKUP_PUBLIC_KEY]


def rewrite(copy: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Another manifest, as somebody without the key would write it."""
    manifest = json.loads((copy / "manifest.json").read_text())
    change(manifest)
    (copy / "manifest.json").write_text(json.dumps(manifest))


# Signatures.


def test_a_signed_backup_is_restored(copy, elsewhere) -> None:
    assert (copy / "manifest.sig").stat().st_size == 64
    restored = restore(copy, elsewhere)
    assert restored.event == restored.manifest.event
    assert sorted(Roster.read(elsewhere / ACCESS).clients) == [0, 1]


def test_the_key_may_lie_where_it_is_kept(service, copy, tmp_path) -> None:
    shutil.move(service / BACKUP_PUBLIC_KEY, tmp_path / "kept.pem")
    arguments = ["restore", str(copy), str(tmp_path / "new"), "--key", str(tmp_path / "kept.pem")]
    assert CliRunner().invoke(app, arguments).exception is None
    assert not (tmp_path / "new" / BACKUP_PUBLIC_KEY).exists()


def test_a_backup_holds_neither_key(copy) -> None:
    assert not [path for path in copy.rglob("*") if path.name in (BACKUP_KEY, BACKUP_PUBLIC_KEY)]


def put_other_models(copy: Path) -> None:
    """What the checksums alone do not notice."""
    path = copy / "journal" / "initial.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    sha256 = hashlib.sha256(content).hexdigest()
    rewrite(copy, lambda manifest: manifest["sha256"].update({"journal/initial.safetensors": sha256}))


def sign_with_another_key(copy: Path) -> None:
    make_backup_key(copy.parent / "stranger")
    signer = backup.backup_signer(copy.parent / "stranger")
    assert signer is not None
    (copy / "manifest.sig").write_bytes(signer.sign((copy / "manifest.json").read_bytes()))


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (put_other_models, "somebody has changed it"),
        (lambda copy: rewrite(copy, lambda manifest: manifest.update(event=0)), "somebody has changed it"),
        (lambda copy: (copy / "manifest.json").write_text("{"), "somebody has changed it"),
        (sign_with_another_key, "or it is of another service"),
        (lambda copy: (copy / "manifest.sig").write_bytes(bytes(64)), "somebody has changed it"),
        (lambda copy: (copy / "manifest.sig").write_bytes(b""), "somebody has changed it"),
        (lambda copy: (copy / "manifest.sig").write_bytes(bytes(65)), "manifest.sig has more than 64 bytes"),
        (lambda copy: (copy / "manifest.sig").unlink(), "is not signed: it has no manifest.sig"),
    ],
)
def test_a_backup_without_the_services_signature_is_refused_before_it_is_believed(
    copy, elsewhere, harm, said, monkeypatch
) -> None:
    harm(copy)
    monkeypatch.setattr(backup, "Manifest", None)  # nobody reads it
    with pytest.raises(UserError, match=said):
        restore(copy, elsewhere)
    assert untouched(elsewhere)


def test_without_a_key_nothing_is_restored_and_the_options_are_named(copy, tmp_path) -> None:
    ran = CliRunner().invoke(app, ["restore", str(copy), str(tmp_path / "new")])
    assert isinstance(ran.exception, UserError)
    said = str(ran.exception)
    assert all(words in said for words in ("new/backup.pem to check the backup with", "--key FILE", "--unsigned"))
    assert not (tmp_path / "new").exists()


def test_an_unsigned_backup_is_restored_only_if_the_operator_says_so(service, elsewhere, tmp_path) -> None:
    (service / BACKUP_KEY).unlink()
    said = CliRunner().invoke(app, ["backup", str(service), str(tmp_path / "copy")]).stdout
    assert "not signed" in said
    assert f"`polytempo certs {service} --backup` makes a key" in said
    with pytest.raises(UserError, match="is not signed"):
        restore(tmp_path / "copy", elsewhere)
    ran = CliRunner().invoke(app, ["restore", str(tmp_path / "copy"), str(elsewhere), "--unsigned"])
    assert ran.exception is None
    assert "service.toml is that of a backup that was not checked" in ran.stdout


def test_a_key_and_no_check_exclude_each_other(copy, elsewhere) -> None:
    key = str(elsewhere / BACKUP_PUBLIC_KEY)
    ran = CliRunner().invoke(app, ["restore", str(copy), str(elsewhere), "--key", key, "--unsigned"])
    assert isinstance(ran.exception, UserError)
    assert "Give either --key FILE" in str(ran.exception)


def test_the_commands_say_whether_a_backup_is_signed(service, tmp_path) -> None:
    said = CliRunner().invoke(app, ["backup", str(service), str(tmp_path / "one"), "--json"]).stdout
    assert json.loads(said)["signed"] is True
    said = CliRunner().invoke(app, ["backup", str(service), str(tmp_path / "two")]).stdout
    assert f"you need {service / BACKUP_PUBLIC_KEY}: keep a copy apart" in said


@pytest.mark.parametrize("content", ["", "no key"])
def test_a_damaged_key_is_named(service, copy, elsewhere, content) -> None:
    (elsewhere / BACKUP_PUBLIC_KEY).write_text(content)
    with pytest.raises(UserError, match=r"backup\.pem holds no public key of backups"):
        restore(copy, elsewhere)
    (service / BACKUP_KEY).write_text(content)
    with pytest.raises(UserError, match=r"backup\.key holds no private key"):
        back_up(service, copy.parent / "another")
    assert not (copy.parent / "another").exists()


def test_a_copy_that_is_changed_before_it_is_signed_does_not_get_a_signature_that_holds(
    service, elsewhere, tmp_path, monkeypatch
) -> None:
    """Somebody who can write where backups lie need not wait until they are whole."""
    write_new = copying.write_new

    def write_and_change(path: Path, chunks: Any) -> Any:
        written = write_new(path, chunks)
        path.write_bytes(path.read_bytes() + b"more")
        return written

    monkeypatch.setattr(copying, "write_new", write_and_change)
    assert back_up(service, tmp_path / "copy").signed
    monkeypatch.undo()
    with pytest.raises(UserError, match="is not what was written"):
        restore(tmp_path / "copy", elsewhere)
    assert untouched(elsewhere)


# Links, pipes and names.


def link(path: Path) -> None:
    """The content is right, and only the way to it leads elsewhere."""
    aside = path.parent.parent / f"{path.name}.aside"
    path.rename(aside)
    path.symlink_to(aside)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


NAMES = ["manifest.json", "manifest.sig", "access.json", "service.toml", f"journal/{DATABASE}"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("put", [link, pipe, folder])
def test_only_plain_files_of_a_backup_are_read(copy, elsewhere, name, put) -> None:
    put(copy / name)
    with pytest.raises(UserError, match=f"{name} is a link or a device, not a plain file"):
        restore(copy, elsewhere)
    assert untouched(elsewhere)


@pytest.mark.parametrize("name", ["access.json", "service.toml"])
def test_settings_of_a_backup_are_read_up_to_a_bound(copy, elsewhere, monkeypatch, name) -> None:
    monkeypatch.setattr(backup_files, "TEXT_BYTES", 1 << 20)
    with (copy / name).open("r+b") as file:
        file.truncate((1 << 20) + 1)
    with pytest.raises(UserError, match=f"{name} has more than 1,048,576 bytes"):
        restore(copy, elsewhere)
    assert untouched(elsewhere)


def test_a_link_instead_of_the_journals_directory_is_not_followed(copy, elsewhere) -> None:
    link(copy / "journal")
    with pytest.raises(UserError, match=r"journal/.* is a link or a device"):
        restore(copy, elsewhere)
    assert untouched(elsewhere)


def test_a_device_is_not_read(copy, elsewhere) -> None:
    (copy / "service.toml").unlink()
    (copy / "service.toml").symlink_to("/dev/zero")
    with pytest.raises(UserError, match=r"service\.toml is a link or a device"):
        restore(copy, elsewhere, unsigned=True)


@pytest.mark.parametrize(
    "name",
    [
        "journal/../outside",
        "journal/../../outside",
        "journal/./initial.safetensors",
        "journal//initial.safetensors",
        "journal/deeper/initial.safetensors",
        "initial.safetensors",
        "/etc/hostname",
        "../outside",
        "journal/status.json",
        "journal/journal.sqlite-wal",
        "journal/lock",
        "journal/updates-1.bodies",
        "journal/snapshot-000000000000.safetensors.old",
        "journal/initial.safetensors\n",
        "server.key",
        "",
    ],
)
def test_a_name_that_is_not_ours_is_refused(copy, elsewhere, name) -> None:
    """Also where the operator vouches for the backup."""
    (copy.parent / "outside").write_bytes((copy / "journal/initial.safetensors").read_bytes())
    rewrite(copy, lambda manifest: manifest["sha256"].update({name: manifest["sha256"]["journal/initial.safetensors"]}))
    with pytest.raises(UserError, match="which is no file of a backup"):
        restore(copy, elsewhere, unsigned=True)
    assert untouched(elsewhere)


def test_files_that_the_manifest_does_not_name_are_left_where_they_are(copy, elsewhere) -> None:
    (copy / "journal" / "status.json").write_text('{"journal": {"events": 1000000}}')
    (copy / "server.key").write_text("a stranger's")
    restore(copy, elsewhere)
    assert not (elsewhere / "journal" / "status.json").exists()
    assert not (elsewhere / "server.key").exists()


def test_what_is_checked_is_what_is_written(copy, elsewhere, monkeypatch) -> None:
    """Each file is opened once: one that is changed as soon as it was read changes nothing."""
    opened, open_file = [], backup_files.open_file

    class Changing:
        def __init__(self, name: str) -> None:
            self._name, self._file = name, open_file(copy, name)

        def __enter__(self) -> Any:
            return self._file

        def __exit__(self, *_: object) -> None:
            self._file.close()
            (copy / self._name).write_bytes(b"changed")

    def open_and_change(_: Path, name: str) -> Changing:
        opened.append(name)
        return Changing(name)

    monkeypatch.setattr(backup_files, "open_file", open_and_change)
    restored = restore(copy, elsewhere)
    assert sorted(opened) == sorted([*restored.manifest.sha256, "manifest.json", "manifest.sig"])
    assert sorted(Roster.read(elsewhere / ACCESS).clients) == [0, 1]
    assert (elsewhere / "service.toml").read_text() == "# settings"


def test_a_manifest_that_never_ends_is_not_read_to_its_end(copy, elsewhere) -> None:
    with (copy / "manifest.json").open("r+b") as file:
        file.truncate(backup.LARGEST_MANIFEST + 1)
    with pytest.raises(UserError, match=r"manifest\.json has more than"):
        restore(copy, elsewhere)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can restore for others")
def test_a_link_that_the_owner_of_the_directory_puts_there_meanwhile_is_not_given_away(
    copy, elsewhere, tmp_path, monkeypatch
) -> None:
    os.chown(elsewhere, 12345, 12345)
    (tmp_path / "roots").mkdir()
    (tmp_path / "roots" / "secret").write_text("root's")
    give_files = files._give_files

    def swap_and_give_files(folder: int, owner: os.stat_result) -> None:
        making = elsewhere / "journal.restoring"
        making.rename(elsewhere / "aside")
        making.symlink_to(tmp_path / "roots")
        give_files(folder, owner)

    monkeypatch.setattr(files, "_give_files", swap_and_give_files)
    restore(copy, elsewhere)
    assert {path.stat().st_uid for path in (elsewhere / "aside").iterdir()} == {12345}
    assert (tmp_path / "roots" / "secret").stat().st_uid == 0
