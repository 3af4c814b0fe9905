"""A method that fails, hangs or asks for the end of the process does not end the service."""

from pathlib import Path

import pytest

from support.serving import hosted, join_all, refused, restarted

BAD = "support.bad_methods:Bad"


def test_a_timer_that_raises_is_rolled_back_and_never_fires_again(tmp_path: Path) -> None:
    with hosted(tmp_path, BAD, patience=1e6) as served:
        join_all(served)
        served.hello(9)
        served.push(0)
        before = served.digest()
        served.at(11.0)
        assert served.digest() != before, "the timer is gone"
        assert served.host.service.next_timer() == 20.0
        assert served.shared.meters.strategy_failures == 1
        assert all(session.ended for session in served.sessions.values())
        served.at(21.0)
        assert served.host.service.timers == []
        assert served.host.service.strategy.model.version == 2, "the next timer fired"
        served.reconnect(1)
        assert served.push(1).WhichOneof("kind") == "task"
        assert restarted(served.copied(tmp_path / "crash"), served.settings) == served.digest()


@pytest.mark.parametrize("harm", ["exit", "hoard", "interrupt"])
def test_whatever_a_method_raises_is_rolled_back(harm: str, tmp_path: Path) -> None:
    with hosted(tmp_path, BAD) as served:
        join_all(served)
        before = served.digest()
        assert refused(served.push(0, answers={"harm": harm}), "the strategy could not take it")
        assert served.digest() == before
        served.reconnect(0)
        assert served.push(0).WhichOneof("kind") == "task"


def test_a_method_that_sets_timers_for_now_starves_nobody(tmp_path: Path) -> None:
    with hosted(tmp_path, "support.bad_methods:Restless") as served:
        served.hello(0)
        before = served.host.service.strategy.fired_times
        served.at(1.0)
        assert served.host.service.strategy.fired_times == before + 1
        assert served.ready(0).WhichOneof("kind") == "task"
