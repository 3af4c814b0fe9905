"""What a client does when the server says no, when its training fails, and when the server is another one."""

import socket
import ssl

import grpc
import torch

from polytempo.serve.access.certs import make_certs
from polytempo.serve.conform.points.point import point
from polytempo.serve.conform.scene import Scene
from polytempo.serve.conform.stage import Ending, NotMetError
from polytempo.serve.paths import SERVER_CERTIFICATE, SERVER_KEY
from polytempo.serve.server import messages
from polytempo_client.protocol.bodies import read_body

MOST_ATTEMPTS = 3
"""With a token that the server does not know."""


@point
def survives_a_refusal(scene: Scene) -> None:
    """Begins anew after an update that was refused, and does not push it again."""
    stage, talk = scene.begun()
    refused = scene.ordered(talk)
    pushed, _ = scene.result(talk, refused)
    talk.send(messages.refusal("Update rejected: a test of what you do now."), pushed)
    flight = scene.flight()
    asked = None
    while asked is None or asked.kind != "push":
        try:
            asked = talk.take("leave", "hello", "ready", "push")
        except NotMetError:
            if not talk.is_over:
                raise
            talk = scene.joined(stage)
            continue
        if asked.kind == "leave":
            talk.send(messages.accepted(), asked)
        elif asked.kind == "hello":
            scene.welcome(talk, asked)
        elif asked.kind == "ready":
            scene.send_task(talk, flight, asked)
    if asked.head.push.task == refused.number:
        raise NotMetError("it pushed the refused update again")
    scene.judged(asked, flight)


@point
def sends_no_nan(scene: Scene) -> None:
    """Never sends NaN or Inf, whatever its training came to: here it is sent a model that holds NaN."""
    _, talk = scene.begun()
    weights = scene.model()
    weights[::2] = torch.nan
    scene.ordered(talk, scene.flight(weights))
    try:
        asked = talk.take("push", "leave", "hello", "ready")
    except NotMetError:
        if talk.is_over or (scene.program is not None and scene.program.exit_code is not None):
            return  # it ended the session, or itself
        raise
    if asked.kind == "push":
        arrays = read_body(asked.body)
        if not all(torch.isfinite(torch.from_numpy(array)).all() for array in arrays.values()):
            raise NotMetError("it pushed an update that holds NaN or Inf")


@point
def gives_up_without_access(scene: Scene) -> None:
    """Ends with an error where the server does not know its token, and does not try again and again."""
    stage = scene.stage()
    stage.refusal = Ending(grpc.StatusCode.UNAUTHENTICATED, "no client has this token, or it has expired")
    scene.start()
    program = scene.program
    assert program is not None
    code = scene.watch.wait_for_end(program)
    if code == 0:
        raise NotMetError("it ended with exit code 0; expected another one, since it could not take part")
    if len(stage.attempts) > MOST_ATTEMPTS:
        raise NotMetError(f"it tried {len(stage.attempts)} times with a token that the server does not know")


@point
def checks_the_server(scene: Scene) -> None:
    """Says nothing to a server whose certificate its CA has not signed."""
    stranger = scene.room / "stranger"
    make_certs(stranger, [])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(stranger / SERVER_CERTIFICATE, stranger / SERVER_KEY)
    context.set_alpn_protocols(["h2"])
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(scene.watch.seconds)
        scene.start(f"127.0.0.1:{listening.getsockname()[1]}")
        try:
            connection, _ = listening.accept()
        except TimeoutError:
            raise NotMetError(f"expected a connection, but none came within {scene.watch.seconds:g} s") from None
        with connection:
            connection.settimeout(scene.watch.seconds)
            try:
                with context.wrap_socket(connection, server_side=True) as secure:
                    said = secure.recv(1)
            except (ssl.SSLError, OSError):
                return
            if said:
                raise NotMetError("it spoke to a server whose certificate was signed by somebody else")


POINTS = (
    survives_a_refusal,
    sends_no_nan,
    gives_up_without_access,
    checks_the_server,
)
