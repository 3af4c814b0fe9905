"""``polytempo conform`` says of a client that does everything right that it conforms, and names what a broken one does
wrong."""

import os
import re
import sys

import pytest

from polytempo.serve.conform.judging import Judgement, judge
from polytempo.serve.conform.points import points
from support import ROOT

PYTHON_CLIENT = [sys.executable, str(ROOT / "examples/clients/conforming.py")]
PLAIN_CLIENT = [sys.executable, str(ROOT / "tests/support/plain_client.py")]
SECONDS = 60.0
"""That a client which does it right may take, on a machine with much else to do."""

FAULTS = [
    ("no-bearer", "joins", "show the token"),
    ("untrained", "trains", "nothing was trained"),
    ("impatient", "waits-its-turn", "ended by itself with exit code 3"),
    ("one-frame", "cuts-frames", "a frame has 608.* bytes of data"),
    ("own-order", "joins-frames", "away from model"),
    ("strict", "takes-what-is-new", "ended by itself with exit code 4"),
    ("sends-all", "leaves-out", "it pushed body.bias, body.weight too|it pushed body.weight, body.bias too"),
    ("deaf", "takes-a-refresh", "started from the task.s model"),
    ("deaf-to-report", "stops-on-report", "although it was to stop"),
    ("early", "repeats", "before it was welcome"),
    ("trains-again", "repeats", "another message than the one whose answer was lost"),
    ("heeds-task", "says-what-it-has", "its hello says task"),
    ("gives-up", "survives-a-restart", "ended by itself with exit code 1"),
    ("clings", "drops-a-withdrawn-task", "expected a ready, but it sent a push"),
    ("hammers", "backs-off", "expected growing pauses"),
    ("first-only", "moves-on", "ended by itself with exit code 1"),
    ("insists", "survives-a-refusal", "the refused update again"),
    ("sends-nan", "sends-no-nan", "holds NaN or Inf"),
    ("persists", "gives-up-without-access", "expected the program to end"),
    ("trusts-anybody", "checks-the-server", "spoke to a server whose certificate"),
    ("no-exponent", "speaks-fp16", "cannot be decoded"),
    ("sends-half", "speaks-topk", "holds 26 values; expected 6"),
    ("encodes-anyway", "obeys-the-welcome", "did not agree"),
    ("misreads-halves", "reads-half-models", "away from model"),
    ("forgets-task", "keeps-its-task", "its hello says task 0"),
    ("hashes-the-line", "enrols", "token_sha256"),
    ("shows-nothing", "shows-its-certificate", "expected a session, but nothing came"),
]
"""What is wrong with a client, the point that it does not meet, and why."""
NEVER = {"persists", "shows-nothing"}
"""Faults that are seen only because something does not come."""


def judged(command: list[str], point: str, seconds: float = SECONDS) -> Judgement:
    (judgement,) = judge(command, [point], seconds)
    return judgement


@pytest.fixture(autouse=True)
def _client_finds_what_it_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]))


@pytest.mark.parametrize("point", points)
def test_the_python_client_conforms(point: str) -> None:
    judgement = judged(PYTHON_CLIENT, point)
    assert (judgement.verdict, judgement.reason) == ("met", "")


@pytest.mark.parametrize(("fault", "point", "reason"), FAULTS, ids=[fault for fault, _, _ in FAULTS])
def test_a_client_with_a_fault_is_caught_at_it(fault: str, point: str, reason: str) -> None:
    judgement = judged([*PLAIN_CLIENT, fault], point, 3.0 if fault in NEVER else SECONDS)
    assert judgement.verdict == "not met"
    assert re.search(reason, judgement.reason), judgement.reason


def test_every_point_is_missed_by_a_client_with_a_fault() -> None:
    assert {point for _, point, _ in FAULTS} == set(points)
