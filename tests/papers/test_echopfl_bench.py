"""What the drift benchmark reads off a run: before, after, and how long until it is back."""

from collections.abc import Sequence

import pytest

from polytempo.papers.echopfl_drift import after_drifts, before_drifts, drift_times, rounds_to_recover
from polytempo.report.run import Run
from support.runs import made_run


def run(accuracies: Sequence[float], drifts: Sequence[float]) -> Run:
    """Four clients; an evaluation every 10 s and every 8 updates; drifts at these times."""
    evaluations = [{"time": 10.0 * i, "updates": 8 * i, "accuracy": accuracy} for i, accuracy in enumerate(accuracies)]
    marks = [{"kind": "drift", "time": time, "client": client} for time in drifts for client in (0, 2)]
    return made_run({"clients": 4}, {}, evaluations, marks=marks)


def test_a_drift_before_the_first_update_is_none():
    assert drift_times(run([0.1], [0.0, 5.0])) == [5.0]


def test_the_figures_of_one_drift():
    drifted = run([0.1, 0.9, 0.6, 0.5, 0.89, 0.9], [12.0])
    assert before_drifts(drifted, drifted) == 0.9
    assert after_drifts(drifted, drifted) == 0.5
    assert rounds_to_recover(drifted, drifted) == 6  # 24 updates of four clients: from 10 s to 40 s


def test_figures_are_means_over_drifts():
    drifted = run([0.1, 0.9, 0.7, 0.9, 0.8, 0.6, 0.9], [12.0, 32.0])
    assert before_drifts(drifted, drifted) == pytest.approx(0.9)
    assert after_drifts(drifted, drifted) == pytest.approx((0.7 + 0.6) / 2)
    assert rounds_to_recover(drifted, drifted) == pytest.approx((4 + 6) / 2)


def test_who_is_not_back_before_the_next_drift_has_not_recovered():
    drifted = run([0.1, 0.9, 0.7, 0.7, 0.9, 0.9], [12.0, 32.0])
    assert rounds_to_recover(drifted, drifted) is None


def test_a_run_without_drifts_has_no_such_figures():
    calm = run([0.1, 0.9], [])
    assert before_drifts(calm, calm) is None
    assert rounds_to_recover(calm, calm) is None
