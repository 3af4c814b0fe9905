"""Take part in a Polytempo federation from any device. It needs numpy, grpcio and protobuf, and nothing else."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from polytempo_client.client import Client
from polytempo_client.logs import log_to
from polytempo_client.model.encodings import Encodings
from polytempo_client.model.schema import Schema
from polytempo_client.protocol.tasks import Membership, Model, Task
from polytempo_client.session.addresses import Servers
from polytempo_client.updates.own_rule import judged
from polytempo_client.work import Work

if TYPE_CHECKING:
    from polytempo_client.ask_when import AskWhen
    from polytempo_client.privacy import Privacy
    from polytempo_client.session.enrolment import enrol_client
    from polytempo_client.updates.ledger import Ledger

__all__ = [
    "AskWhen",
    "Client",
    "Encodings",
    "Ledger",
    "Membership",
    "Model",
    "Privacy",
    "Schema",
    "Servers",
    "Task",
    "Work",
    "enrol_client",
    "judged",
    "log_to",
]

_HOMES = {
    "AskWhen": "polytempo_client.ask_when",
    "Ledger": "polytempo_client.updates.ledger",
    "Privacy": "polytempo_client.privacy",
    "enrol_client": "polytempo_client.session.enrolment",
}
"""What only some devices use is imported when it is first used."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
