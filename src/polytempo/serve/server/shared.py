"""What the host's thread and the network's loop share."""

from dataclasses import dataclass, field

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
