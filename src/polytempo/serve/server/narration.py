"""What the log tells of events."""

from typing import Any

from polytempo.serve.server.status import mixture_row
from polytempo.serve.state.events import Event
from polytempo.serve.state.service import Dispatched, Service
from polytempo_client.logs import log


def apply_and_log(service: Service, event: Event) -> list[Dispatched]:
    """Let the event happen; what it changed about the clusters is logged."""
    strategy = service.strategy
    splits, regroupings = len(strategy.splits()), len(strategy.regroupings())
    orders = service.apply(event)
    for split in strategy.splits()[splits:]:
        sizes = [len(part) for part in split.members]
        log("split", at=event.at, cluster=split.cluster, parts=split.parts, clients=sizes, why=split.why)
    for it in strategy.regroupings()[regroupings:]:
        log(it.kind, at=event.at, source=it.source, target=it.target, clients=len(it.clients), why=it.why)
    return orders


def details(service: Service, event: Event) -> dict[str, Any]:
    """What there is to say of an update that was applied."""
    if event.push is None:
        return {}
    member = service.members[event.client]
    planned = {} if member.due is None else member.due.row()
    told = {"task": event.push.task, "version": member.version, "staleness": member.staleness}
    return told | planned | mixture_row(service.strategy, event.client)
