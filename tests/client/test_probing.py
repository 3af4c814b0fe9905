"""A client whose request stays unanswered asks the other servers, and goes to the one that welcomes it."""

import pytest

from polytempo_client.session.addresses import Servers
from polytempo_client.session.failures import FailedAttempt
from polytempo_client.session.probing import Prober
from polytempo_client.session.search import Search


class World:
    """A clock, a request that waits, and what was asked."""

    def __init__(self) -> None:
        self.now = 0.0
        self.since: float | None = None
        self.leader = ""
        self.answers_meanwhile = False
        self.asked: list[tuple[float, str]] = []
        self.found: list[tuple[str, float]] = []
        self.prober = Prober(
            lambda: self.since,
            lambda: ["b", "c"],
            self._probe,
            lambda address, since: self.found.append((address, since)),
            lambda: self.now,
        )

    def _probe(self, address: str) -> bool:
        self.asked.append((self.now, address))
        self.since = None if self.answers_meanwhile else self.since
        return address == self.leader

    def until(self, time: float) -> None:
        while self.now < time:
            self.now += self.prober.look()


@pytest.fixture
def world() -> World:
    return World()


def test_nobody_is_asked_while_answers_come(world: World) -> None:
    for number in range(20):
        world.since = number * 0.9
        world.until(number * 0.9 + 0.5)
    world.since = None
    world.until(100.0)
    assert world.asked == []


def test_the_others_are_asked_ever_more_seldom(world: World) -> None:
    world.since = 0.0
    world.until(30.0)
    assert [round(time, 1) for time, address in world.asked if address == "b"][:6] == [1.0, 1.5, 2.0, 2.5, 3.1, 3.9]
    world.asked.clear()
    world.until(100.0)
    assert {round(b - a) for (a, _), (b, _) in zip(world.asked[::2], world.asked[2::2], strict=False)} <= {7, 8}
    assert world.found == []


def test_the_first_that_welcomes_the_client_is_told(world: World) -> None:
    world.since = 0.0
    world.until(2.0)
    world.leader = "c"
    world.until(4.0)
    assert set(world.found) == {("c", 0.0)}


def test_a_server_that_answers_meanwhile_keeps_its_client(world: World) -> None:
    world.since, world.leader, world.answers_meanwhile = 0.0, "b", True
    world.until(5.0)
    assert world.asked
    assert world.found == []


def test_the_search_goes_to_the_server_that_was_found_without_a_pause() -> None:
    search = Search(Servers(("a:1", "b:1", "c:1")))
    assert search.others == ["b:1", "c:1"]
    search.go_to("c:1")
    assert search.pause(FailedAttempt("it is silent")) == 0.0
    assert search.address == "c:1"
    assert search.others == ["a:1", "b:1"]
    assert search.pause(FailedAttempt("it is silent")) > 0.0
    assert search.address == "a:1"
