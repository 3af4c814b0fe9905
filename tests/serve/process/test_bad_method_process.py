"""A method that hangs or ends the process, served by real processes. A stop ends them, the next start names the event,
and nothing acknowledged is lost."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from polytempo.serve.access.certs import make_certs
from polytempo.serve.access.tokens import make_tokens
from polytempo.serve.journal.opening import open_service
from polytempo.serve.journal.settings import make_settings
from polytempo_client.client import Client
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


def test_a_thread_that_the_method_leaves_behind_does_not_keep_a_stopped_server(served: Processes) -> None:
    server = served.serve()
    directory = served.directory
    with Client(served.address, directory / "client-0.token", directory / "ca.pem") as client:
        task = client.task(SECONDS)
        client.push(task, nudge(task), samples=5, answers={"harm": "leave"}, timeout=SECONDS)
    server.terminate()
    assert served.end_of(server) == 0, served.logs()
    assert acknowledged(directory) == 1


# A file that does harm when it is imported.


@pytest.fixture
def importing(served: Processes) -> Iterator[Callable[[str], Processes]]:
    """Processes that serve a file with this code. A file ``begun`` tells that it runs."""
    made: list[Processes] = []

    def begin(code: str) -> Processes:
        file = served.directory / "harmful.py"
        file.write_text(f"from pathlib import Path\nPath({str(file.with_name('begun'))!r}).touch()\n{code}")
        made.append(Processes(served.directory, f"{file}:Mine"))
        return made[-1]

    yield begin
    for processes in made:
        processes.end()


def test_a_stop_ends_a_server_whose_method_hangs_while_it_is_imported(
    importing: Callable[[str], Processes],
) -> None:
    processes = importing("import threading\nthreading.Event().wait()\n")
    server = processes.begin_to_serve()
    processes.wait_until((processes.directory / "begun").exists)
    server.terminate()
    assert processes.end_of(server) == 0, processes.logs()
    assert "Stopped while the strategy was being imported" in processes.last_log()


def test_a_file_that_freezes_every_thread_while_it_is_imported_ends_the_process(
    importing: Callable[[str], Processes],
) -> None:
    processes = importing("sum(range(10**15))\n")
    assert processes.end_of(processes.begin_to_serve()) == 1, processes.logs()
    assert "harmful.py" in processes.last_log()


def test_a_file_that_leaves_a_thread_behind_and_is_refused_ends_the_process(
    importing: Callable[[str], Processes],
) -> None:
    processes = importing("import threading\nthreading.Thread(target=threading.Event().wait).start()\n")
    assert processes.end_of(processes.begin_to_serve()) == 2, processes.logs()
    assert "Unknown name" in processes.last_log()
