"""Everything going on at once: timers, refreshes, early reports, pulls, losses, pauses, slow networks."""

from polytempo.core.orders import Report, Send, SetTimer
from polytempo.strategies.base.strategy import parameters
from polytempo.strategies.methods.fedasync import FedAsync
from polytempo.strategies.methods.fedavg import FedAvg
from polytempo.strategies.methods.standalone import Standalone

DEVICES = """
think = 2.0
pull_every = 3.0
[network]
up = 60.0
down = 100.0
latency = 0.3
[availability]
on = 30.0
off = 10.0
[dropout]
probability = 0.25
away = 4.0
[[late]]
clients = 0.3
by = 10.0
[[speed_change]]
at = 7.0
factor = 3.0
clients = 0.5
"""


class Bustle:
    """Refreshes and early reports on timers, answers to pulls."""

    def joined(self, client, now):
        super().joined(client, now)
        yield SetTimer(now + 2.7, f"refresh {client}")
        yield SetTimer(now + 5.1, f"report {client}")

    def fired(self, key, now):
        what, client = key.split()
        if what == "refresh":
            yield Send(int(client), self.model.weights, self.model.version, rebase=now % 2 < 1)
        else:
            yield Report(int(client))
        yield SetTimer(now + 3.3, key)

    def pulled(self, client, now):
        yield Send(client, self.model.weights, self.model.version)


@parameters
class BusyFedAsync(Bustle, FedAsync):
    pass


@parameters
class BusyFedAvg(Bustle, FedAvg):
    pass


@parameters
class BusyStandalone(Bustle, Standalone):
    pass
