"""Connections that break, servers that are away, and servers that stand by."""

import grpc

from polytempo.serve.conform.points.point import check_in_hand, point
from polytempo.serve.conform.scene import APART, LARGE, MANY, Scene
from polytempo.serve.conform.stage import Ending, NotMetError
from polytempo.serve.server import messages
from polytempo_client.protocol.framing import NOT_HERE

QUIET_SECONDS = 0.5
"""In which a client that does not wait would have sent something."""
ATTEMPTS, LAST, SHORTEST = 6, 2, 0.6
"""Pauses of 0.1 s, twice as long each time, and half as long by chance: the last two of five are 0.9 s or more. A
client that does not pause needs a fraction of it, also on a machine with much else to do."""


@point
def repeats(scene: Scene) -> None:
    """Hands a result in again whose answer was lost, byte for byte and once it is welcome. Any answer is a receipt."""
    scene.schema = LARGE
    stage, talk = scene.begun()
    flight = scene.ordered(talk)
    first, _ = scene.result(talk, flight)
    talk.end()
    talk = stage.next_talk()
    hello = talk.take("hello")
    check_in_hand(hello, flight.number, flight.number)
    if not talk.is_silent(QUIET_SECONDS):
        raise NotMetError("it went on before it was welcome; a server may close a connection that does")
    scene.welcome(talk, hello, flight.number)
    again, _ = scene.result(talk, flight)
    if again.body != first.body or again.head.push != first.head.push:
        raise NotMetError("its repeat is another message than the one whose answer was lost")
    talk.send(messages.model(scene.model(), version=1, schema=scene.schema), again)  # to one without a next task
    scene.result(talk, scene.ordered(talk))


@point
def says_what_it_has(scene: Scene) -> None:
    """Says in its hello which order of its task it received last, so that it is sent only what it missed."""
    stage, talk = scene.begun()
    flight = scene.ordered(talk, scene.flight(steps=MANY))
    number = scene.refresh(talk, flight, scene.model(APART))
    talk.end()
    talk = stage.next_talk()
    hello = talk.take("hello")
    check_in_hand(hello, flight.number, number)
    scene.welcome(talk, hello, flight.number)
    scene.report(talk, flight)
    scene.result(talk, flight)


@point
def survives_a_restart(scene: Scene) -> None:
    """Comes back after the server was away, with its task in hand, and hands in what was not acknowledged."""
    stage, talk = scene.begun()
    flight = scene.ordered(talk)
    scene.result(talk, flight)
    stage.stop()
    stage.start()
    talk = stage.next_talk()
    hello = talk.take("hello")
    check_in_hand(hello, flight.number, flight.number)
    scene.welcome(talk, hello, flight.number)
    pushed, _ = scene.result(talk, flight)
    scene.result(talk, scene.go_on(talk, pushed))


@point
def drops_a_withdrawn_task(scene: Scene) -> None:
    """Drops a task that the welcome does not name any more, and asks for another."""
    stage, talk = scene.begun()
    scene.ordered(talk, scene.flight(steps=MANY))
    talk.end()
    talk = scene.joined(stage)
    scene.result(talk, scene.ordered(talk))


@point
def backs_off(scene: Scene) -> None:
    """Tries again after growing pauses where the server turns it away for now."""
    stage = scene.stage()
    stage.refusal = Ending(grpc.StatusCode.UNAVAILABLE, "the server restarts")
    scene.start()
    scene.watch.wait(lambda: len(stage.attempts) >= ATTEMPTS or None, f"{ATTEMPTS} attempts to open a session")
    took = stage.attempts[ATTEMPTS - 1] - stage.attempts[ATTEMPTS - 1 - LAST]
    if took < SHORTEST:
        raise NotMetError(f"its last {LAST} pauses of {ATTEMPTS - 1} were {took:.2f} s; expected growing pauses")
    stage.refusal = None
    scene.joined(stage).take("ready")


@point
def moves_on(scene: Scene) -> None:
    """Given two addresses, goes on to the other one where the first says that the service is not here, or is gone."""
    first, second = scene.stage(), scene.stage()
    first.refusal = Ending(grpc.StatusCode.UNAVAILABLE, f"{NOT_HERE}: this server stands by")
    scene.start()
    talk = scene.joined(second)
    flight = scene.ordered(talk)
    scene.result(talk, flight)
    second.stop()
    first.refusal = None
    talk = scene.joined(first, flight.number)
    pushed, _ = scene.result(talk, flight)
    scene.result(talk, scene.go_on(talk, pushed))


POINTS = (
    repeats,
    says_what_it_has,
    survives_a_restart,
    drops_a_withdrawn_task,
    backs_off,
    moves_on,
)
