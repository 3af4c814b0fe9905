"""How EchoPFL's promise is read off two runs."""

from polytempo.papers.echopfl_promise import in_the_same_time
from support.runs import made_run


def test_the_slowest_fifth_counts_that_was_served_when_the_other_run_ends():
    evaluations = [{"time": 10.0 * i, "accuracy_slowest_fifth": 0.1 * i} for i in range(5)]
    run = made_run({"clients": 4}, {"virtual_time": 40.0}, evaluations)
    assert in_the_same_time(run, made_run({"clients": 4}, {"virtual_time": 29.0})) == 0.2
    assert in_the_same_time(run, made_run({"clients": 4}, {"virtual_time": 30.0})) == 0.1 * 3
