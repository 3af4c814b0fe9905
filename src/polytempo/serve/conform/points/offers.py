"""What a client may offer beside training: encodings, a kept task, enrolment, a certificate of its own."""

import hashlib
from pathlib import Path

from polytempo.serve.conform.points.point import NotOfferedError, check_in_hand, point
from polytempo.serve.conform.scene import MANY, Scene
from polytempo.serve.conform.stage import NotMetError, Received
from polytempo_client.model.encodings import parse_encoding
from polytempo_client.protocol.bodies import read_body

SHORTEST_TOKEN = 22
"""Characters of base64 for 128 random bits."""


@point
def speaks_fp16(scene: Scene) -> None:
    """Encodes updates in half precision, if it offers to and the server agrees."""
    _encodes(scene, "fp16")


@point
def speaks_topk(scene: Scene) -> None:
    """Sends the largest entries of an update, if it offers to, and the same ones again if the answer is lost."""
    _encodes(scene, "topk:0.1")


def _encodes(scene: Scene, wish: str) -> None:
    stage = scene.stage()
    scene.start(POLYTEMPO_UPLOAD=wish)
    talk = stage.next_talk()
    hello = talk.take("hello")
    if not any(parse_encoding(offered).kind == parse_encoding(wish).kind for offered in _known(hello)):
        raise NotOfferedError(f"it offers no {wish}")
    agreed = _known(hello)[0]
    scene.welcome(talk, hello, upload=agreed)
    flight = scene.ordered(talk)
    first, _ = scene.result(talk, flight)
    if first.head.push.encoding != agreed:
        raise NotMetError(f"the welcome says {agreed!r}, and its update is encoded as {first.head.push.encoding!r}")
    values, most = read_body(first.body)["values"], parse_encoding(agreed).count(scene.schema.size)
    if len(values) != most:
        raise NotMetError(f"its update in {agreed} holds {len(values)} values; expected {most}")
    talk.end()
    talk = scene.joined(stage, flight.number, agreed)
    again, _ = scene.result(talk, flight)
    if again.body != first.body:
        raise NotMetError("its repeat is another update than the one whose answer was lost")
    flight = scene.go_on(talk, again)
    scene.result(talk, flight)


def _known(hello: Received) -> list[str]:
    """The encodings that it wishes, as far as there are such."""
    return [wish for wish in hello.head.hello.uploads if wish == "fp16" or wish.startswith("topk")]


@point
def obeys_the_welcome(scene: Scene) -> None:
    """Sends float32 where the server does not agree to the encoding that it wished."""
    _, talk = scene.begun(POLYTEMPO_UPLOAD="fp16")
    pushed, _ = scene.result(talk, scene.ordered(talk))
    if pushed.head.push.encoding:
        raise NotMetError(f"it encoded its update as {pushed.head.push.encoding!r}, to which the server did not agree")


@point
def reads_half_models(scene: Scene) -> None:
    """Reads models in half precision, if it offers to."""
    stage = scene.stage()
    scene.start(POLYTEMPO_UPLOAD="fp16", POLYTEMPO_DOWNLOAD="fp16")
    talk = stage.next_talk()
    hello = talk.take("hello")
    if "fp16" not in hello.head.hello.downloads:
        raise NotOfferedError("it wishes no models in half precision")
    scene.welcome(talk, hello, download="fp16")  # updates whole: a difference would not show what was read
    flight = scene.flight(scene.model().half().float())
    scene.send_task(talk, flight, talk.take("ready"), "fp16")
    scene.result(talk, flight)


@point
def keeps_its_task(scene: Scene) -> None:
    """Goes on with its open task after the program was killed and started again."""
    stage = scene.stage()
    scene.start()
    flight = scene.ordered(scene.joined(stage), scene.flight(steps=MANY))
    scene.watch.wait(
        lambda: _is_filled(scene.keep_file), f"the open task in {scene.keep_file.name}, the file to keep it in"
    )
    assert scene.program is not None
    scene.program.kill()
    scene.start()
    talk = stage.next_talk()
    hello = talk.take("hello")
    check_in_hand(hello, flight.number, flight.number)
    scene.welcome(talk, hello, flight.number)
    scene.report(talk, flight)
    scene.result(talk, flight)


def _is_filled(file: Path) -> bool | None:
    return (file.exists() and file.stat().st_size > 0) or None


@point
def enrols(scene: Scene) -> None:
    """Makes a token, says its hash with a one-time code, and takes part with it."""
    scene.token_file = scene.room / "new.token"
    stage = scene.stage()
    scene.start(POLYTEMPO_CODE="a-code")
    enrolment = stage.take_enrolment()
    if enrolment.code != "a-code":
        raise NotMetError(f"its code is {enrolment.code!r}; expected that of POLYTEMPO_CODE, 'a-code'")
    talk = stage.next_talk()
    found = hashlib.sha256(talk.token.encode()).hexdigest()
    if enrolment.token_sha256 != found:
        raise NotMetError(
            f"it enrolled with token_sha256 {enrolment.token_sha256!r}, and the token that it shows has {found!r}"
        )
    if len(talk.token) < SHORTEST_TOKEN:
        raise NotMetError(f"its token has {len(talk.token)} characters; expected at least {SHORTEST_TOKEN} of chance")
    scene.welcome(talk, talk.take("hello"))
    talk.take("ready")


@point
def shows_its_certificate(scene: Scene) -> None:
    """Shows its own certificate where the server asks for it."""
    stage = scene.stage(mutual=True)
    scene.start()
    scene.joined(stage).take("ready")


POINTS = (
    speaks_fp16,
    speaks_topk,
    obeys_the_welcome,
    reads_half_models,
    keeps_its_task,
    enrols,
    shows_its_certificate,
)
