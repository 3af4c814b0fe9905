"""One session in which nothing goes wrong: a client gets tasks, trains, and hands in."""

import json
import time
from dataclasses import replace

import torch

from polytempo.core.orders import Objective
from polytempo.serve.conform.points.point import point
from polytempo.serve.conform.scene import APART, FEW, LARGE, MANY, Scene
from polytempo.serve.conform.stage import NotMetError
from polytempo.serve.server import messages
from polytempo_client.personal.told import JuryScores, Personal
from polytempo_client.protocol.bodies import read_body
from polytempo_client.protocol.framing import FRAME_BYTES

SMALL_FRAMES, ODD_FRAMES = 1 << 16, 7_919
"""Bytes of data: of a server that takes small ones, and of one that sends what it likes."""
BETWEEN = (0.0, 0.1, 0.5, 2.0)
"""Seconds between a refresh and the report. A client that is slow, or at the wrong place of its loop, may see both at
once, and stop before it takes the model: then it is given another task, and more time."""
UNKNOWN_FIELD = bytes.fromhex("c23e036e6577")
"""Field 1000 of any message, with the text "new"."""


@point
def joins(scene: Scene) -> None:
    """Opens a session with its token, says hello and asks for work."""
    stage = scene.stage()
    scene.start()
    scene.joined(stage).take("ready")


@point
def trains(scene: Scene) -> None:
    """Trains from the model that it is sent, hands in what the server takes, and goes on with the next task."""
    _, talk = scene.begun()
    flight = scene.ordered(talk)
    for _ in range(2):
        pushed, checked = scene.result(talk, flight)
        if checked.steps != FEW:
            raise NotMetError(f"it says that it did {checked.steps} steps; the task has {FEW}")
        flight = scene.go_on(talk, pushed)


@point
def waits_its_turn(scene: Scene) -> None:
    """Waits for its task where the answer to Ready is Accepted."""
    _, talk = scene.begun()
    talk.send(messages.accepted(), talk.take("ready"))
    flight = scene.flight()
    scene.send_task(talk, flight, None)
    asked = talk.take("push", "ready")
    if asked.kind == "ready":  # it may ask again
        scene.send_task(talk, flight, asked)
        asked = talk.take("push")
    scene.judged(asked, flight)


@point
def cuts_frames(scene: Scene) -> None:
    """Cuts what it sends into frames no larger than the welcome says."""
    scene.schema = LARGE
    stage = scene.stage()
    scene.start()
    talk = stage.next_talk()
    scene.welcome(talk, talk.take("hello"), frames=SMALL_FRAMES)
    scene.result(talk, scene.ordered(talk))


@point
def joins_frames(scene: Scene) -> None:
    """Puts frames of any size together, and reads tensors in any order, with metadata among them."""
    scene.schema = LARGE
    _, talk = scene.begun()
    flight = scene.flight()
    asked = talk.take("ready")
    head, body = messages.order_message(scene.dispatched(flight), scene.schema)
    head.answers = asked.head.request
    talk.send_frames(head, [_rewritten(b"".join(body))], ODD_FRAMES)
    scene.result(talk, flight)


def _rewritten(body: bytes) -> bytes:
    """The same tensors as another writer of safetensors may write them."""
    arrays = read_body(body)
    table: dict[str, object] = {"__metadata__": {"format": "np"}}
    data, begin = b"", 0
    for name in reversed(list(arrays)):
        raw = arrays[name].tobytes()
        table[name] = {"shape": list(arrays[name].shape), "data_offsets": [begin, begin + len(raw)], "dtype": "F32"}
        data, begin = data + raw, begin + len(raw)
    text = json.dumps(table, indent=1).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


@point
def takes_what_is_new(scene: Scene) -> None:
    """Ignores fields of later versions, vectors that it does not use, and rules that it does not follow."""
    _, talk = scene.begun()
    flight = scene.flight()
    weights = flight.order.weights
    objective = Objective(0.1, anchor=weights, linear=torch.zeros_like(weights))
    pool = JuryScores(1, (0.1, 0.1, 0.2, 0.2), (0.1, 0.1, 0.2, 0.2))
    flight.order = replace(flight.order, objective=objective, personal=Personal("jury", {}, pool))
    asked = talk.take("ready")
    head, body = messages.order_message(scene.dispatched(flight), scene.schema)
    head.answers = asked.head.request
    head.task.MergeFromString(UNKNOWN_FIELD)
    head.MergeFromString(UNKNOWN_FIELD)
    talk.send_frames(head, body, FRAME_BYTES)
    scene.result(talk, flight)


@point
def leaves_out(scene: Scene) -> None:
    """Leaves the tensors out that its task does not train, and no others."""
    _, talk = scene.begun()
    flight = scene.ordered(talk, scene.flight(trainable=("head",)))
    pushed, _ = scene.result(talk, flight)
    needless = [name for name in read_body(pushed.body) if name.startswith("body.")]
    if needless:
        raise NotMetError(f"its task trains head only, and it pushed {', '.join(needless)} too")


@point
def takes_a_refresh(scene: Scene) -> None:
    """Goes on from a model that comes in the middle of its training, and says so."""
    _, talk = scene.begun()
    flight = scene.ordered(talk, scene.flight(steps=MANY))
    for pause in BETWEEN:
        number = scene.refresh(talk, flight, scene.model(APART))
        time.sleep(pause)
        scene.report(talk, flight)
        pushed, _ = scene.result(talk, flight)
        base = pushed.head.push.base
        if base == number:
            return
        flight = scene.go_on(talk, pushed, scene.flight(steps=MANY))
    raise NotMetError(
        f"it was sent models in the middle of {len(BETWEEN)} trainings, and says of each result that it started from "
        f"the task's model, at last from model {base}"
    )


@point
def stops_on_report(scene: Scene) -> None:
    """Stops training when it is asked for what it has, and says how many steps it did."""
    _, talk = scene.begun()
    flight = scene.ordered(talk, scene.flight(steps=MANY))
    scene.report(talk, flight)
    _, checked = scene.result(talk, flight)
    scene.soon(checked, flight)


POINTS = (
    joins,
    trains,
    waits_its_turn,
    cuts_frames,
    joins_frames,
    takes_what_is_new,
    leaves_out,
    takes_a_refresh,
    stops_on_report,
)
