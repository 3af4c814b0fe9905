"""What the host sends to clients: orders to whom they are for, and the answer to whoever asked."""

from collections.abc import Collection, Mapping

from polytempo.core.orders import Send, Train
from polytempo.serve.logs import log
from polytempo.serve.protocol import messages
from polytempo.serve.server.requests import Request, Session
from polytempo.serve.state.service import Dispatched, Service

Sessions = Mapping[int, Session]
"""The session of each client that is connected."""


def welcome(service: Service, sessions: Sessions, request: Request, encodings: Collection[str]) -> None:
    """The answer to hello, and what the client has missed of its task."""
    client, hello = request.session.client, request.head.hello
    task = service.open_task(client)
    upload, request.session.download = messages.agreed(hello, encodings)
    seed = service.strategy.setting.seed
    message = messages.welcome(client, service.schema, seed, task, upload, request.session.download)
    request.session.send(message, request.head.request)
    if task and task == hello.task:
        send_all(service, sessions, service.missed(client, hello.heeded))


def send_all(
    service: Service,
    sessions: Sessions,
    orders: list[Dispatched],
    request: Request | None = None,
    wanted: type[Train] | type[Send] = Train,
) -> bool:
    """Send orders to those whom they are for; the first of the wanted kind for whoever asked is the answer. Was there
    one?"""
    answered = False
    refreshed = [sent.order.client for sent in orders if isinstance(sent.order, Send) and sent.task]
    if refreshed:
        log("refresh", clients=refreshed)
    for sent in orders:
        session = sessions.get(sent.order.client)
        if session is None:
            continue  # it is sent again when the client comes back
        answer = not answered and request is not None and request.session is session and isinstance(sent.order, wanted)
        answered = answered or answer
        number = request.head.request if answer and request is not None else 0
        session.send(messages.order_message(sent, service.schema, session.download), number)
    return answered


def answer_as_now(service: Service, sessions: Sessions, request: Request) -> None:
    """What the client would be served now: its open task, or its model."""
    client = request.session.client
    if client in service.flights and request.kind == "push":
        send_all(service, sessions, service.task_again(client), request)
    else:
        weights = service.strategy.model_for(client)
        version = service.version_of(weights)
        # a copy: it is sent later, and some strategies change their models in place
        message = messages.model(weights.clone(), version, service.schema, request.session.download)
        request.session.send(message, request.head.request)


def say_place(service: Service, request: Request) -> None:
    """The answer to branch: where the client belongs."""
    client = request.session.client
    branch, version = service.strategy.cluster_of(client), service.version_of(service.strategy.model_for(client))
    request.session.send(messages.membership(branch, version, service.sharing(client)), request.head.request)
