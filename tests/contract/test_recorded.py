"""Whole runs end as they did when their results were recorded: the accuracy on any machine, every bit of the weights on
the same kind of machine."""

import json

import pytest

from support.recording import CASES, RECORD, machine, result_of

record = json.loads(RECORD.read_text())


@pytest.mark.parametrize("case", CASES)
def test_a_run_ends_as_recorded(case):
    recorded, found = record["results"][case], result_of(case)
    assert found["accuracy"] == pytest.approx(recorded["accuracy"], abs=0.03)
    if record["machine"] == machine():
        assert found["weights"] == recorded["weights"]
