"""Tokens, and the two commands that make tokens and certificates."""

import fcntl
import json
import logging
import os
import time
from datetime import timedelta

import pytest
import typer
from typer.testing import CliRunner

from polytempo.cli import access as commands
from polytempo.core.errors import PassingError, UserError
from polytempo.serve.access.certs import make_certs
from polytempo.serve.access.enrolment import make_code
from polytempo.serve.access.live import Access
from polytempo.serve.access.roster import Operator, Pass, Quarantine, Roster, changing, utc_now
from polytempo.serve.access.tokens import make_operator, make_tokens, revoke_client, revoke_operator
from polytempo.serve.paths import ACCESS
from polytempo.serve.storage import documents
from polytempo_client.session.credentials import hash_of, read_token

SHA = "0123456789abcdef" * 4
LOCK = f".{ACCESS}.lock"


def clients(table, **more):
    return json.dumps({"clients": table, **more})


def mode(path):
    return path.stat().st_mode & 0o777


def roster(directory):
    return Roster.read(directory / ACCESS)


def test_a_token_finds_its_own_client_and_no_other(tmp_path):
    files = make_tokens(tmp_path, 3)
    tokens = [read_token(file) for file in files]
    assert [file.name for file in files] == ["client-0.token", "client-1.token", "client-2.token"]
    assert [roster(tmp_path).client_of(token, time.time()) for token in tokens] == [0, 1, 2]
    assert len(roster(tmp_path).clients) == 3


@pytest.mark.parametrize("stranger", ["", "0", "x" * 43, "\udcff", "\0", SHA])
def test_a_token_of_nobody_finds_nobody(tmp_path, stranger):
    make_tokens(tmp_path, 2)
    assert roster(tmp_path).client_of(stranger, time.time()) is None


def test_the_hash_of_a_token_is_not_a_token(tmp_path):
    make_tokens(tmp_path, 1)
    assert roster(tmp_path).client_of(roster(tmp_path).clients[0].token, time.time()) is None


def test_the_server_keeps_hashes_and_no_token(tmp_path):
    tokens = [read_token(file) for file in make_tokens(tmp_path, 2)]
    text = (tmp_path / ACCESS).read_text()
    assert all(token not in text for token in tokens)
    assert [len(entry["token"]) for entry in json.loads(text)["clients"].values()] == [64, 64]


def test_only_the_owner_reads_tokens_and_hashes_and_nothing_else_is_left(tmp_path):
    make_tokens(tmp_path / "new", 1)
    found = {path.name: mode(path) for path in (tmp_path / "new").iterdir()}
    assert found == {ACCESS: 0o600, LOCK: 0o600, "client-0.token": 0o600}
    assert mode(tmp_path / "new") == 0o700


def test_tokens_added_later_leave_the_old_ones_valid(tmp_path):
    old = [read_token(file) for file in make_tokens(tmp_path, 2)]
    assert [file.name for file in make_tokens(tmp_path, 4)] == ["client-2.token", "client-3.token"]
    assert make_tokens(tmp_path, 3) == []
    assert [roster(tmp_path).client_of(token, time.time()) for token in old] == [0, 1]
    assert len(roster(tmp_path).clients) == 4


def test_a_token_file_that_was_handed_over_and_deleted_is_not_made_again(tmp_path):
    (file,) = make_tokens(tmp_path, 1)
    token = read_token(file)
    file.unlink()
    assert make_tokens(tmp_path, 1) == []
    assert roster(tmp_path).client_of(token, time.time()) == 0


def test_a_crash_before_the_hashes_are_written_leaves_tokens_that_are_made_anew(tmp_path, monkeypatch):
    def crash(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("polytempo.serve.access.roster.with_tables", crash)
        with pytest.raises(KeyboardInterrupt):
            make_tokens(tmp_path, 1)
    lost = read_token(tmp_path / "client-0.token")
    (file,) = make_tokens(tmp_path, 1)
    assert roster(tmp_path).client_of(lost, time.time()) is None
    assert roster(tmp_path).client_of(read_token(file), time.time()) == 0


def test_a_write_that_fails_keeps_the_old_roster_and_leaves_no_temporary_file(tmp_path, monkeypatch):
    make_tokens(tmp_path, 1)
    before = (tmp_path / ACCESS).read_bytes()

    def disk_full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", disk_full)
    with pytest.raises(UserError, match="No space left"):
        make_tokens(tmp_path, 2)
    assert (tmp_path / ACCESS).read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {ACCESS, LOCK, "client-0.token"}


def test_a_revoked_token_is_nobodys_and_its_client_can_get_a_new_one(tmp_path):
    revoked, kept = [read_token(file) for file in make_tokens(tmp_path, 2)]
    revoke_client(tmp_path, 0)
    assert not (tmp_path / "client-0.token").exists()
    assert [roster(tmp_path).client_of(token, time.time()) for token in (revoked, kept)] == [None, 1]
    (file,) = make_tokens(tmp_path, 2)
    assert roster(tmp_path).client_of(read_token(file), time.time()) == 0
    assert roster(tmp_path).client_of(revoked, time.time()) is None


def test_revoking_what_is_not_there_is_an_error(tmp_path):
    with pytest.raises(UserError, match="Client 0 has no token"):
        revoke_client(tmp_path, 0)
    make_tokens(tmp_path, 1)
    with pytest.raises(UserError, match="Client 7 has no token"):
        revoke_client(tmp_path, 7)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "Invalid JSON"),
        ('{"clients": ', "Invalid JSON"),
        ("[" * 100_000, "Invalid JSON"),
        ("\xff\xfe", "Invalid JSON"),
        ("[]", "should be an object"),
        ('{"clients": []}', "clients: Input should be an object"),
        (json.dumps({"0": SHA}), "0: Extra inputs"),
        (clients({"-1": {"token": SHA}}), "greater than or equal to 0"),
        (clients({"anna": {"token": SHA}}), "valid integer"),
        (clients({"0": SHA}), r"clients\.0"),
        (clients({"0": {"token": SHA[1:]}}), "pattern"),
        (clients({"0": {"token": SHA.upper()}}), "pattern"),
        (clients({"0": {"token": 5}}), "valid string"),
        (clients({"0": {"token": SHA}, "1": {"token": SHA}}), "same token"),
        (clients({"0": {"token": SHA}}, operators={"anna": {"token": SHA, "role": "admin"}}), "same token"),
        (clients({}, operators={"anna": {"token": SHA, "role": "owner"}}), "admin, viewer"),
        (clients({"0": {"token": SHA, "expires": "2030-01-01T00:00:00"}}), "timezone"),
    ],
)
def test_a_damaged_roster_is_refused_and_never_overwritten(tmp_path, text, problem):
    (tmp_path / ACCESS).write_text(text, "latin-1")
    with pytest.raises(UserError, match=problem):
        roster(tmp_path)
    with pytest.raises(UserError, match=problem):
        make_tokens(tmp_path, 2)
    assert {path.name for path in tmp_path.iterdir()} == {ACCESS, LOCK}
    assert (tmp_path / ACCESS).read_text("latin-1") == text


def test_a_roster_that_is_missing_or_unreadable_is_an_error_that_says_what_to_do(tmp_path):
    with pytest.raises(UserError, match="polytempo tokens"):
        roster(tmp_path)
    with pytest.raises(UserError, match="Cannot read"):
        Roster.read(tmp_path)


@pytest.mark.parametrize("content", [b"", b" \n", b"two words", b"\xff\xff", "schlüssel".encode()])
def test_a_token_file_without_one_word_of_ascii_is_refused(tmp_path, content):
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(UserError, match="holds no token"):
        read_token(tmp_path / "token")


def test_a_token_is_read_without_the_space_around_it(tmp_path):
    (tmp_path / "token").write_text("  secret\r\n\n")
    assert read_token(tmp_path / "token") == "secret"
    with pytest.raises(UserError, match="No such file"):
        read_token(tmp_path / "none")


@pytest.mark.parametrize("make", [lambda path: make_tokens(path, 1), lambda path: make_certs(path, [])])
def test_a_directory_that_cannot_be_written_is_an_error(tmp_path, make):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Choose another directory"):
        make(tmp_path / "file" / "below")


def test_tokens_for_no_clients_are_refused(tmp_path):
    with pytest.raises(UserError, match="from 1 on"):
        make_tokens(tmp_path, 0)


@pytest.fixture
def polytempo():
    app = typer.Typer()
    app.command()(commands.certs)
    app.command()(commands.tokens)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False).stdout


def test_the_commands_make_what_server_and_clients_need_and_say_who_gets_what(tmp_path, polytempo):
    printed = polytempo("certs", tmp_path, "--host", "10.0.0.7", "--host", "server.example.org", "--days", 30)
    assert "a new CA" in printed
    assert "give ca.pem to every client" in printed
    assert "a new CA" not in polytempo("certs", tmp_path)
    printed = polytempo("tokens", tmp_path, "--clients", 8)
    assert str(tmp_path / "client-7.token") in printed
    assert read_token(tmp_path / "client-7.token") not in printed
    assert "nothing to do" in polytempo("tokens", tmp_path, "--clients", 8)
    assert "removed client 3" in polytempo("tokens", tmp_path, "--revoke", 3)
    assert len(roster(tmp_path).clients) == 7


def test_the_tokens_command_does_one_thing_at_a_time(tmp_path, polytempo):
    with pytest.raises(UserError, match="Give one of --clients N"):
        polytempo("tokens", tmp_path, "--clients", 2, "--revoke", 1)


def test_the_tokens_command_alone_shows_who_may_do_what(tmp_path, polytempo, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    polytempo("tokens", tmp_path, "--clients", 2, "--days", 3)
    polytempo("tokens", tmp_path, "--operator", "anna", "--role", "admin")
    make_code(tmp_path, 7)
    with changing(tmp_path) as known:
        known["quarantined"][1] = Quarantine(since=utc_now(), reason="it sent NaN")
        known["clients"][5] = Pass(token="0" * 64, expires=utc_now() - timedelta(days=1))
    shown = [" ".join(line.split()) for line in polytempo("tokens", tmp_path).splitlines()]
    assert any(line.startswith("client-0 train 20") for line in shown)
    assert any(line.startswith("client-1 train 20") and line.endswith("quarantined: it sent NaN") for line in shown)
    assert any(line.startswith("client-5 train 20") and line.endswith("(expired)") for line in shown)
    assert "operator anna act for ever" in shown
    assert any(line.startswith("client-7 enrol 20") and line.endswith("an open code") for line in shown)


def test_who_has_an_expired_token_gets_a_new_one(tmp_path):
    make_tokens(tmp_path, 2)
    with changing(tmp_path) as known:
        known["clients"][1] = Pass(token="0" * 64, expires=utc_now() - timedelta(days=1))
    assert [path.name for path in make_tokens(tmp_path, 2)] == ["client-1.token"]


# What a running server makes of it.


def test_what_changed_is_logged_by_number_and_name_and_never_a_secret(tmp_path, caplog):
    make_tokens(tmp_path, 2)
    access = Access(tmp_path)
    code = make_code(tmp_path, 9)
    revoke_client(tmp_path, 0)
    make_operator(tmp_path, "anna", "admin")
    caplog.set_level(logging.INFO)
    assert access.refresh()
    (line,) = [record for record in caplog.records if record.getMessage() == "access changed"]
    assert line.fields == {
        "clients": {"removed": [0]},
        "operators": {"added": ["anna"]},
        "codes": {"added": [9]},
    }
    assert code not in str(vars(line))


def test_while_the_file_cannot_be_read_nobody_new_is_let_in(tmp_path, caplog):
    now = [0.0]
    make_tokens(tmp_path, 2)
    access = Access(tmp_path, seconds=lambda: now[0])
    (tmp_path / ACCESS).write_text("{")
    for now[0] in (1.0, 2.0, 5.9):
        access.refresh()
        assert "damaged" in access.problem
        assert not access.is_blind
    now[0] = 6.1
    assert access.is_blind
    assert len([record for record in caplog.records if record.getMessage() == "access unreadable"]) == 1
    (tmp_path / ACCESS).unlink()
    make_tokens(tmp_path, 1)
    access.refresh()
    assert access.problem is None
    assert not access.is_blind


def test_a_file_that_was_away_for_a_while_is_read_again_though_it_is_the_same(tmp_path):
    now = [0.0]
    make_tokens(tmp_path, 1)
    access = Access(tmp_path, seconds=lambda: now[0])
    (tmp_path / ACCESS).rename(tmp_path / "kept")
    access.refresh()
    now[0] = 10.0
    assert access.is_blind
    (tmp_path / "kept").rename(tmp_path / ACCESS)
    access.refresh()
    assert not access.is_blind
    assert access.problem is None


def test_a_roster_that_somebody_else_holds_is_not_waited_for_for_ever(tmp_path, monkeypatch):
    make_tokens(tmp_path, 1)
    monkeypatch.setattr(documents, "LOCK_SECONDS", 0.1)
    with (tmp_path / ".access.json.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(PassingError, match="is locked by another process"):
            revoke_client(tmp_path, 0)
    revoke_client(tmp_path, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can write for others")
def test_what_root_writes_into_somebodys_directory_is_theirs_where_the_server_has_to_read_it(tmp_path):
    os.chown(tmp_path, 12345, 12345)
    make_tokens(tmp_path, 1)
    revoke_client(tmp_path, 0)
    make_operator(tmp_path, "anna", "admin")
    make_certs(tmp_path, [])
    theirs = {path.name for path in tmp_path.iterdir() if path.stat().st_uid == 12345}
    assert theirs == {ACCESS, ".access.json.lock", "ca.pem", "server.pem", "server.key"}


# Until when, and what for.


def in_days(days):
    """Seconds since 1970."""
    return time.time() + 86400 * days


def test_a_token_counts_for_its_days_and_no_longer(tmp_path):
    (file,) = make_tokens(tmp_path, 1, days=30)
    who = roster(tmp_path)
    assert who.client_of(read_token(file), in_days(29)) == 0
    assert who.objection(0, hash_of(read_token(file)), in_days(29)) is None
    assert who.client_of(read_token(file), in_days(31)) is None
    assert who.objection(0, hash_of(read_token(file)), in_days(31)) == "the token has expired"


def test_an_operators_token_is_no_clients_and_a_clients_no_operators(tmp_path):
    client = read_token(make_tokens(tmp_path, 1)[0])
    operator = read_token(make_operator(tmp_path, "anna", "admin", days=1))
    who = roster(tmp_path)
    assert who.operator_of(operator, time.time()) == Operator("anna", "admin")
    assert who.client_of(operator, time.time()) is None
    assert who.operator_of(client, time.time()) is None
    assert who.operator_of(operator, in_days(2)) is None


def test_an_operators_new_token_replaces_the_old_one_and_a_revoked_one_is_nobodys(tmp_path):
    first = read_token(make_operator(tmp_path, "anna", "admin"))
    second = read_token(make_operator(tmp_path, "anna", "viewer"))
    assert roster(tmp_path).operator_of(first, time.time()) is None
    assert roster(tmp_path).operator_of(second, time.time()) == Operator("anna", "viewer")
    revoke_operator(tmp_path, "anna")
    assert roster(tmp_path).operator_of(second, time.time()) is None
    assert not (tmp_path / "operator-anna.token").exists()
    with pytest.raises(UserError, match="no operator 'anna'"):
        revoke_operator(tmp_path, "anna")


def test_a_new_token_has_the_role_of_the_one_before(tmp_path):
    for role, expected in (("admin", "admin"), (None, "admin"), ("viewer", "viewer"), (None, "viewer")):
        make_operator(tmp_path, "anna", role)
        assert Roster.read(tmp_path / ACCESS).operators["anna"].role == expected
    make_operator(tmp_path, "ben")
    assert Roster.read(tmp_path / ACCESS).operators["ben"].role == "viewer"


@pytest.mark.parametrize("name", ["", "../anna", "a b", "-x", "a" * 64, "ä"])
def test_what_is_no_name_of_an_operator_is_refused_and_nothing_is_written(tmp_path, name):
    with pytest.raises(UserError, match="no name for an operator"):
        make_operator(tmp_path / "new", name, "viewer")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("days", [0.0, -1.0, 1e9, float("nan")])
def test_an_impossible_number_of_days_leaves_the_tokens_that_there_are(tmp_path, days):
    old = read_token(make_operator(tmp_path, "anna", "admin"))
    with pytest.raises(UserError, match="days is not possible"):
        make_operator(tmp_path, "anna", "admin", days)
    with pytest.raises(UserError, match="days is not possible"):
        make_tokens(tmp_path, 1, days)
    assert read_token(tmp_path / "operator-anna.token") == old
    assert not (tmp_path / "client-0.token").exists()
