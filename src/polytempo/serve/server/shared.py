"""What the host's thread and the network's loop share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from polytempo.serve.access.live import Access
from polytempo.serve.server.meters import Meters
from polytempo.serve.server.network.outbox import Outbox
from polytempo.serve.server.operations import Operations


@dataclass
class Shared:
    """Of one server. Whoever builds the process makes it, and gives it to both."""

    operations: Operations
    """Replaced as a whole when they change."""
    access: Access
    outbox: Outbox = field(default_factory=Outbox)
    meters: Meters = field(default_factory=Meters)
    servers: Callable[[], dict[str, Any]] = dict
    """What the status says of the servers that share the service's store; nothing where it has none but this one."""
