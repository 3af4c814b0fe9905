"""Take part in a Polytempo federation from any device. It needs numpy, grpcio and protobuf, and nothing else."""

from polytempo_client.asks import Asks
from polytempo_client.client import Client
from polytempo_client.logs import log_to
from polytempo_client.model.encodings import Encodings
from polytempo_client.model.schema import Schema
from polytempo_client.privacy import Privacy
from polytempo_client.protocol.tasks import Membership, Model, Task
from polytempo_client.session.addresses import Servers
from polytempo_client.session.enrolment import enrol_client
from polytempo_client.updates.ledger import Ledger
from polytempo_client.updates.own_rule import judged
from polytempo_client.work import Work

__all__ = [
    "Asks",
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
