"""What the host sends to clients: orders to those whom they are for, and the reply to whoever asked."""

from collections.abc import Collection, Iterator, Mapping

from polytempo.core.orders import Send, Train
from polytempo.serve.server import messages
from polytempo.serve.server.decisions import Outgoing, Reply
from polytempo.serve.server.requests import Request, Session
from polytempo.serve.state.events import Event
from polytempo.serve.state.service import Dispatched, Service
from polytempo_client.logs import log

Sessions = Mapping[int, Session]
"""The session of each client that is connected."""


def event_replies(
    service: Service,
    sessions: Sessions,
    request: Request | None,
    event: Event,
    orders: list[Dispatched],
    encodings: Collection[str],
) -> Iterator[Reply]:
    """What goes out after an event: its orders, one of which may be the reply to whoever asked, if somebody did. Each
    is made when the one before it is sent: if the strategy has no reply, its orders are on their way."""
    if request is None:
        yield order_messages(service, sessions, orders)
        return
    if event.kind == "joined":
        yield welcome_reply(service, sessions, request, encodings)
        yield order_messages(service, sessions, orders)
        return
    wanted = Send if event.kind == "pulled" else Train
    reply = order_messages(service, sessions, orders, request, wanted)
    yield reply
    if not reply.has_direct_reply():
        yield current_reply(service, sessions, request) if event.kind == "pulled" else accepted_reply(request)


def welcome_reply(service: Service, sessions: Sessions, request: Request, encodings: Collection[str]) -> Reply:
    """The reply to hello, and what the client has missed of its task."""
    client, hello = request.session.client, request.head.hello
    task = service.open_task(client)
    upload, download = messages.agreed(hello, encodings)
    message = messages.welcome(client, service.schema, service.strategy.setting.seed, task, upload, download)
    missed: Reply = Reply()
    if task and task == hello.task:
        missed = order_messages(service, sessions, service.missed(client, hello.heeded))
    return Reply((Outgoing(request.session, message, request.head.request), *missed))


def order_messages(
    service: Service,
    sessions: Sessions,
    orders: list[Dispatched],
    request: Request | None = None,
    wanted: type[Train] | type[Send] = Train,
) -> Reply:
    """Orders as messages to those whom they are for. The first of the wanted kind for whoever asked is the reply."""
    refreshed = [sent.order.client for sent in orders if isinstance(sent.order, Send) and sent.task]
    if refreshed:
        log("refresh", clients=refreshed)
    found: list[Outgoing] = []
    number = 0 if request is None else request.head.request
    for sent in orders:
        session = sessions.get(sent.order.client)
        if session is None:
            continue  # it is sent again when the client comes back
        asked = number and request is not None and request.session is session and isinstance(sent.order, wanted)
        message = messages.order_message(sent, service.schema, session.download)
        if asked and wanted is Send:
            _add_personal(message, service, session.client)
        found.append(Outgoing(session, message, number if asked else 0))
        if asked:
            number = 0
    return Reply(found)


def current_reply(service: Service, sessions: Sessions, request: Request) -> Reply:
    """What the client would be served now: its open task, or its model."""
    client = request.session.client
    if client in service.flights and request.kind == "push":
        return order_messages(service, sessions, service.task_again(client), request)
    weights = service.strategy.model_for(client)
    version = service.version_of(weights)
    # a copy: it is sent later, and some strategies change their models in place
    message = messages.model(weights.clone(), version, service.schema, request.session.download)
    _add_personal(message, service, client)
    return reply_to(request, message)


def _add_personal(message: messages.Message, service: Service, client: int) -> None:
    """A client that follows the personal rule is told what it needs to use the model."""
    personal = service.strategy.personal()
    if personal is not None:
        messages.add_personal(message, personal, service.members[client].answered)


def membership_reply(service: Service, request: Request) -> Reply:
    """The reply to branch: which branch the client belongs to."""
    client = request.session.client
    branch, version = service.strategy.cluster_of(client), service.version_of(service.strategy.model_for(client))
    return reply_to(request, messages.membership(branch, version, service.sharing(client)))


def accepted_reply(request: Request) -> Reply:
    return reply_to(request, messages.accepted())


def reply_to(request: Request, message: messages.Message) -> Reply:
    return Reply((Outgoing(request.session, message, request.head.request),))
