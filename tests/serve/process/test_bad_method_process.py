"""A method that hangs or ends the process, served by real processes. A stop ends them, the next start names the event,
and nothing acknowledged is lost."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from polytempo.serve.access.certs import make_certs
from polytempo.serve.access.tokens import make_tokens
from polytempo.serve.client.client import Client
from polytempo.serve.journal.opening import open_service
from polytempo.serve.journal.settings import make_settings
from support.processes import Processes
from support.serving import nudge

BAD = "support.bad_methods:Bad"
SECONDS = 120.0


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Processes]:
    make_certs(tmp_path, [])
    make_tokens(tmp_path, 2)
    (tmp_path / "service.toml").write_text("[watchdog]\nevent_seconds = 1.0\n")
    processes = Processes(tmp_path, BAD)
    yield processes
    processes.end()


def harm(processes: Processes, kind: str, after: Callable[[], object]) -> int:
    """Hand in a good update, then one that does harm. Returns the number of the good one's task."""
    directory = processes.directory
    with Client(processes.address, directory / "client-0.token", directory / "ca.pem") as client:
        good = client.task(SECONDS)
        client.push(good, nudge(good), samples=5, timeout=SECONDS)
        bad = client.task(SECONDS)
        with pytest.raises(TimeoutError):
            client.push(bad, nudge(bad), samples=5, answers={"harm": kind}, timeout=0.5)
        after()
    return good.number


def acknowledged(directory: Path) -> int:
    opened = open_service(directory / "journal", make_settings(strategy=BAD, epochs=5))
    opened.journal.close()
    return opened.service.members[0].updates


def test_a_stop_ends_a_server_whose_method_hangs_and_the_next_start_names_the_event(served: Processes) -> None:
    server = served.serve()
    harm(served, "loop", server.terminate)
    assert served.end_of(server) == 75, served.logs()
    assert "did not come back from event 4 (update of client 0)" in served.last_log()
    assert "time.sleep(0.01)" in served.logged("server", "stuck")[0]["stack"]
    again = served.begin_to_serve()
    assert served.end_of(again) == 2, served.logs()
    assert "does not come back from event 4" in served.last_log()
    assert "--leave-out 4" in served.last_log()
    last = served.serve("--leave-out", 4)
    last.terminate()
    assert served.end_of(last) == 0, served.logs()
    assert acknowledged(served.directory) == 1


def test_a_method_that_freezes_every_thread_ends_the_process_with_its_stack(served: Processes) -> None:
    server = served.serve()
    harm(served, "freeze", lambda: None)
    assert served.end_of(server) == 1, served.logs()
    assert "bad_methods.py" in served.last_log()
    last = served.serve("--leave-out", 4)
    last.terminate()
    assert served.end_of(last) == 0, served.logs()
    assert acknowledged(served.directory) == 1


def test_a_method_that_ends_the_process_twice_is_named_and_can_be_left_out(served: Processes) -> None:
    server = served.serve()
    harm(served, "die", lambda: None)
    assert served.end_of(server) == 9
    assert served.end_of(served.begin_to_serve()) == 9, "one death may be anybody's fault: it is replayed"
    assert served.end_of(served.begin_to_serve()) == 2, served.logs()
    assert "Event 4 (update of client 0)" in served.last_log()
    last = served.serve("--leave-out", 4)
    last.terminate()
    assert served.end_of(last) == 0, served.logs()
    assert acknowledged(served.directory) == 1
