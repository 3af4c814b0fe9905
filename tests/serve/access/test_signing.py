"""The key pair of backups: made once, kept, and for its owner only."""

import os
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from polytempo.cli import access as commands
from polytempo.core.errors import UserError
from polytempo.serve.access.certs import make_certs
from polytempo.serve.access.signing import backup_signer, backup_verifier, is_signed_by, make_backup_key


def certs(*words: object) -> str:
    app = typer.Typer()
    app.command()(commands.certs)
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False).stdout


def pair(directory: Path) -> tuple[bytes, bytes]:
    return (directory / "backup.key").read_bytes(), (directory / "backup.pem").read_bytes()


def signature(directory: Path, content: bytes) -> bytes:
    signer = backup_signer(directory)
    assert signer is not None
    return signer.sign(content)


def test_what_one_key_signs_only_its_public_key_takes(tmp_path) -> None:
    for name in ("ours", "theirs"):
        make_backup_key(tmp_path / name)
    ours, theirs = (backup_verifier(tmp_path / name / "backup.pem") for name in ("ours", "theirs"))
    signed = signature(tmp_path / "ours", b"content")
    assert is_signed_by(ours, b"content", signed)
    assert not is_signed_by(ours, b"contents", signed)
    assert not is_signed_by(theirs, b"content", signed)
    assert not is_signed_by(ours, b"content", signed[:-1])


def test_certs_makes_the_pair_for_a_new_service_and_for_one_that_has_none(tmp_path) -> None:
    assert "which signs backups" in certs(tmp_path / "new")
    assert ((tmp_path / "new" / "backup.key").stat().st_mode & 0o777) == 0o600
    make_certs(tmp_path / "old", [])
    assert "which signs backups" in certs(tmp_path / "old")
    assert backup_signer(tmp_path / "old") is not None


def test_a_new_server_certificate_keeps_the_pair(tmp_path) -> None:
    certs(tmp_path)
    before, server = pair(tmp_path), (tmp_path / "server.pem").read_bytes()
    assert "were there and stay" in certs(tmp_path)
    assert pair(tmp_path) == before
    assert (tmp_path / "server.pem").read_bytes() != server


def test_the_pair_can_be_made_where_the_cas_key_is_not(tmp_path) -> None:
    make_certs(tmp_path, [])
    (tmp_path / "ca.key").unlink()
    server = (tmp_path / "server.pem").read_bytes()
    assert "which signs backups" in certs(tmp_path, "--backup")
    assert (tmp_path / "server.pem").read_bytes() == server
    with pytest.raises(UserError, match="Give one of --host"):
        certs(tmp_path, "--backup", "--client", 1)


def test_a_lost_public_key_is_made_again_from_the_private_one(tmp_path) -> None:
    make_backup_key(tmp_path)
    before = pair(tmp_path)
    (tmp_path / "backup.pem").unlink()
    make_backup_key(tmp_path)
    assert pair(tmp_path) == before


def test_a_public_key_alone_is_not_replaced(tmp_path) -> None:
    make_backup_key(tmp_path)
    before = pair(tmp_path)
    (tmp_path / "backup.key").unlink()
    with pytest.raises(UserError, match=r"has backup\.pem but no backup\.key"):
        make_backup_key(tmp_path)
    assert (tmp_path / "backup.pem").read_bytes() == before[1]


def test_a_key_of_another_kind_signs_nothing(tmp_path) -> None:
    make_certs(tmp_path, [])
    (tmp_path / "backup.key").write_bytes((tmp_path / "server.key").read_bytes())
    with pytest.raises(UserError, match="Expected an Ed25519 key"):
        backup_signer(tmp_path)
    with pytest.raises(UserError, match="holds no public key of backups"):
        backup_verifier(tmp_path / "ca.pem")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make keys for others")
def test_what_root_makes_in_somebodys_directory_is_theirs(tmp_path) -> None:
    os.chown(tmp_path, 12345, 12345)
    make_backup_key(tmp_path)
    assert {(tmp_path / name).stat().st_uid for name in ("backup.key", "backup.pem")} == {12345}
