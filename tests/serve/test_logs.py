"""Logs are JSON lines, in files that never grow without bound."""

import io
import json
import logging
import subprocess
import sys

import pytest

from polytempo.core.errors import UserError
from polytempo.serve.logs import log_to_file
from polytempo_client.logs import log, log_to
from support.serving import nudge, running


@pytest.fixture(autouse=True)
def logs_as_before():
    logger = logging.getLogger("polytempo")
    before = (logger.handlers, logger.level, logger.propagate)
    logger.handlers = []
    yield
    log_to()
    logger.handlers, logger.level, logger.propagate = before


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_file_gets_one_object_per_line(tmp_path):
    log_to_file(tmp_path / "service.log")
    log("updated", client=3)
    log("refused", level=logging.WARNING, reason="two\nlines")
    log("unheard", level=logging.DEBUG)
    first, second = lines(tmp_path / "service.log")
    assert (first["event"], first["level"], first["client"]) == ("updated", "info", 3)
    assert second["reason"] == "two\nlines"


def test_a_full_file_is_rotated_and_only_so_many_are_kept(tmp_path):
    log_to_file(tmp_path / "service.log", most_bytes=1000, kept=2)
    for number in range(100):
        log("counted", number=number)
    files = sorted(tmp_path.iterdir(), reverse=True)
    assert [path.name for path in files] == ["service.log.2", "service.log.1", "service.log"]
    assert all(path.stat().st_size <= 1000 for path in files)
    numbers = [line["number"] for path in files for line in lines(path)]
    assert numbers == list(range(numbers[0], 100))


def test_only_the_owner_can_read_the_files(tmp_path):
    log_to_file(tmp_path / "service.log", most_bytes=200, kept=2)
    for number in range(10):
        log("counted", number=number)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_a_restart_and_a_change_of_settings_go_on_with_the_same_file(tmp_path):
    log_to_file(tmp_path / "service.log")
    log("first")
    log_to_file(tmp_path / "service.log", level="warning")
    log("unheard")
    log("second", level=logging.ERROR)
    assert [line["event"] for line in lines(tmp_path / "service.log")] == ["first", "second"]


def test_logs_go_to_one_place_at_a_time(tmp_path):
    stream = io.StringIO()
    log_to_file(tmp_path / "service.log")
    log_to(stream)
    log("here")
    (told,) = lines(tmp_path / "service.log")
    assert (told["event"], told["to"]) == ("log goes elsewhere", "stderr")
    assert json.loads(stream.getvalue())["event"] == "here"


def test_a_file_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(UserError, match="Cannot write logs to"):
        log_to_file(tmp_path / "taken")


def test_no_token_is_ever_logged(tmp_path):
    with running(tmp_path, clients=2) as server:
        log_to_file(tmp_path / "service.log", level="debug")
        with server.client(0) as client:
            task = client.task(10)
            client.push(task, nudge(task), samples=1, timeout=10)
        token = server.token(0)
    said = (tmp_path / "service.log").read_text()
    assert '"updated"' in said
    assert token not in said


def test_a_program_that_sets_up_no_logging_is_told_nothing():
    quiet = "from polytempo_client.logs import log; log('refused', level=30, reason='it is too long')"
    ran = subprocess.run([sys.executable, "-c", quiet], capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("", "")


def test_a_program_that_sets_up_logging_is_told_what_and_finds_why_in_the_record():
    shown = (
        "import logging; from polytempo_client.logs import log;"
        "logging.basicConfig(); logging.getLogger().handlers[0].addFilter(lambda record: print(record.fields) or True);"
        "log('refused', level=30, reason='it is too long')"
    )
    ran = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("{'reason': 'it is too long'}\n", "WARNING:polytempo:refused\n")
