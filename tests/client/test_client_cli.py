"""The command line of the light client."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from polytempo.serve.access.enrolment import make_code
from polytempo_client.cli import main
from polytempo_client.updates.ledger import read_updates
from support.absence import HEAVY, without
from support.serving import Running, running

TRAIN = """
import numpy as np


def train(task):
    return {name: array + np.float32(0.1) for name, array in task.tensors.items()}, 5, {"accuracy": 0.5}


def data():
    return np.zeros((10, 1)), np.arange(10) % 2


def score(tensors, x, y):
    return 1.0 * y, y == 0
"""


@pytest.fixture
def server(tmp_path: Path) -> Running:
    (tmp_path / "mine.py").write_text(TRAIN)
    with running(tmp_path) as server:
        yield server


def joined(server: Running, *options: str, number: int = 0) -> None:
    directory = server.directory
    words = ["--train", f"{directory / 'mine.py'}:train", "--token", str(directory / f"client-{number}.token")]
    main(["join", server.address, *words, "--insecure", "--updates", "2", "--log-level", "error", *options])


def ended(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
        main(words)
    return int(end.value.code or 0), capsys.readouterr().err


def test_a_function_of_a_file_takes_part_and_leaves(server: Running) -> None:
    joined(server)
    member = server.host.service.members[0]
    assert (member.updates, member.accuracy) == (2, 0.5)
    assert not server.host.service.is_member(0)


def test_it_takes_part_where_nothing_else_is_installed(server: Running) -> None:
    words = ["join", server.address, "--train", f"{server.directory / 'mine.py'}:train", "--insecure"]
    words += ["--token", str(server.directory / "client-0.token"), "--updates", "1", "--upload", "fp16"]
    script = f"{without(HEAVY)}\nimport sys\nfrom polytempo_client.cli import main\nmain(sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert server.host.service.members[0].updates == 1


def test_several_servers_are_one_word(server: Running) -> None:
    directory = server.directory
    words = ["--train", f"{directory / 'mine.py'}:train", "--token", str(directory / "client-1.token")]
    main(["join", "--servers", f"127.0.0.1:1,{server.address}", *words, "--insecure", "--updates", "1"])
    assert server.host.service.members[1].updates == 1


def test_a_policy_looks_at_the_data_of_the_file(server: Running) -> None:
    file = server.directory / "mine.py"
    joined(server, "--ask", "accuracy:0.001", "--data", f"{file}:data", "--score", f"{file}:score")
    assert server.host.service.members[0].updates == 2


def test_a_kept_task_stays_open_at_the_end(server: Running) -> None:
    joined(server, "--keep", str(server.directory / "task"))
    assert server.host.service.is_member(0)
    assert (server.directory / "task").exists()


def test_with_privacy_nothing_leaves_but_the_noisy_update(server: Running) -> None:
    ledger = server.directory / "ledger.json"
    joined(server, "--clip-norm", "1", "--noise", "4", "--epsilon", "100", "--ledger", str(ledger), "--new-ledger")
    member = server.host.service.members[0]
    assert (member.updates, member.accuracy) == (2, None)
    assert read_updates(ledger) == {4.0: 2}


def test_a_client_that_has_given_what_it_may_ends_well(server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = server.directory / "ledger.json"
    options = ("--clip-norm", "1", "--noise", "4", "--epsilon", "2.2", "--ledger", str(ledger), "--new-ledger")
    joined(server, *options, "--log-level", "warning")
    assert server.host.service.members[0].updates == 1
    assert json.loads(capsys.readouterr().err.splitlines()[-1])["event"] == "stops"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "HOST:PORT, or --servers"),
        (("a:1", "--servers", "b:2"), "HOST:PORT, or --servers"),
        (("a:1",), "ca='ca.pem'"),
        (("a:1", "--noise", "1"), "both --clip-norm and --noise"),
        (("a:1", "--ledger", "x"), "--ledger belongs to privacy"),
        (("a:1", "--clip-norm", "1", "--noise", "1", "--epsilon", "1"), "need a --ledger"),
        (("a:1", "--clip-norm", "1", "--noise", "1", "--ask", "labels:60", "--data", "json:load"), "in spite of"),
        (("a:1", "--insecure"), "only loopback"),
        (("nonsense", "--insecure"), "is no address"),
        (("127.0.0.1:1", "--insecure"), "Cannot read the token"),
    ],
)
def test_what_does_not_fit_together_is_one_message(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = ended(capsys, "join", *words, "--train", "json:dumps", "--token", "there-is-none")
    assert (code, message in said.splitlines()[-1]) == (2, True), said


def test_a_code_becomes_a_token_with_which_the_client_joins(
    server: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    out = server.directory / "new.token"
    code = make_code(server.directory, 2)
    main(["enrol", "--servers", f"127.0.0.1:1,{server.address}", "--insecure", "--code", code, "--out", str(out)])
    assert capsys.readouterr().out == f"this is client 2; wrote {out}\n"
    out.rename(server.directory / "client-2.token")
    joined(server, number=2)
    assert server.host.service.members[2].updates == 2


def test_a_code_that_is_none_is_one_message(server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(server.directory / "new.token")
    code, said = ended(capsys, "enrol", server.address, "--insecure", "--code", "nonsense", "--out", out)
    assert (code, "This code is not known" in said) == (2, True)


def test_the_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out.strip()[0].isdigit()
