"""What the benchmarks of Concerto read off a run, and which rows they have."""

from collections.abc import Sequence

import pytest

from polytempo.papers import benches
from polytempo.papers.rivals import time_to_alone
from polytempo.report.run import Run
from support.runs import made_run


def run(used: Sequence[float], every: float = 10.0) -> Run:
    """An evaluation of the used models every so many seconds."""
    return made_run({}, {}, [{"time": every * i, "accuracy_used": accuracy} for i, accuracy in enumerate(used)])


def test_the_time_to_standalones_last_accuracy_is_relative_to_its_own():
    alone = run([0.1, 0.5, 0.7, 0.8, 0.9])
    assert time_to_alone(run([0.1, 0.9, 0.95, 0.95, 0.95]), alone) == 0.25
    assert time_to_alone(alone, alone) == 1.0
    assert time_to_alone(run([0.1, 0.5, 0.9], every=40.0), alone) == 2.0


def test_a_run_that_never_gets_there_has_no_time():
    assert time_to_alone(run([0.1, 0.89]), run([0.1, 0.9])) is None


@pytest.mark.parametrize("name", ["natural", "concerto"])
def test_every_world_has_the_same_rivals_and_cdfl_where_it_applies(name):
    for table in benches[name].tables:
        labels = [case.label for case in table.cases]
        assert {"standalone", "standalone-again", "fedasync", "concerto", "casa + personal"} <= set(labels)
        assert len(labels) == 16 + ("cdfl" in labels)
        assert ("cdfl" in labels) == ("proxies" in table.settings)
