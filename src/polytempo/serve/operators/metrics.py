"""The status of a service, in the words of Prometheus. Labels are words of the program and a few branches, never
clients: a federation may have thousands."""

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, islice
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from polytempo.core.status import Status

VALUES = 64
"""Of a label, at most: a method with a model for each client has thousands of branches."""
SOON = 7 * 86400.0
"""Seconds in which a token's end is near."""

GAUGES = (
    ("uptime_seconds", ("uptime",), "Time of the service: stands still while the server is down"),
    ("updates_per_second", ("updates_per_second",), "Updates per second over the last ten seconds"),
    ("timers", ("timers",), "Timers that the strategy has set"),
    ("sessions", ("sessions",), "Open sessions of clients"),
    ("incoming_bytes", ("incoming_bytes",), "Memory of messages that have come in part, or wait for the host"),
    ("certificate_expires_seconds", ("certificate_expires",), "When the server's certificate ends, since 1970"),
    ("draining", ("draining",), "1 while the server finishes what has arrived, before it stops"),
    ("journal_failing", ("journal_failing",), "1 while the server cannot write its journal"),
    ("journal_events", ("journal", "events"), "Number of the last event in the journal"),
    ("journal_bytes", ("journal", "bytes"), "Updates in the journal since the newest snapshot"),
    ("journal_snapshot_bytes", ("journal", "snapshot_bytes"), "Size of the newest snapshot"),
    ("process_resident_memory_bytes", ("memory_bytes",), "Resident memory of the server's process"),
)
COUNTERS = (
    ("updates", ("updates",), "Updates that were applied since the service began"),
    ("updates_held_back", ("held_back",), "Updates held back by robust mixing"),
    ("bad_reports", ("bad_reports",), "Reports of clients' juries that cannot be true"),
    ("strategy_failures", ("strategy_failures",), "Events that were rolled back because the strategy failed on them"),
    ("received_bytes", ("bytes", "in"), "Bytes of messages from clients since the server started"),
    ("sent_bytes", ("bytes", "out"), "Bytes of messages to clients since the server started"),
)


def exposition(status: Mapping[str, Any], replies: Mapping[str, int]) -> bytes:
    """The metrics as text: of a service's status, and of the replies to operators, by HTTP code."""
    registry = CollectorRegistry()
    registry.register(_StatusCollector(status, replies, time.time()))
    return generate_latest(registry)


class _StatusCollector(Collector):
    def __init__(self, status: Mapping[str, Any], replies: Mapping[str, int], now: float) -> None:
        self._status, self._replies, self._now = status, replies, now

    def collect(self) -> Iterator[Metric]:
        status = self._status
        for name, path, text in GAUGES:
            yield from _gauge(name, text, number(status, *path))
        for name, path, text in COUNTERS:
            yield from _counter(name, text, number(status, *path))
        unreadable = float(status.get("access_problem") is not None)
        yield from _gauge("access_unreadable", "1 while the server cannot read who may talk to it", unreadable)
        written = number(status, "written")
        age = None if written is None else max(self._now - written, 0.0)
        yield from _gauge("status_age_seconds", "Seconds since the host last wrote its status", age)
        # What alerts watch is there from the start: Prometheus sees no increase in what was not there before.
        refusals = {"contested": 0, **(status.get("refusals") or {})}
        yield _labelled(CounterMetricFamily, "refusals", "Requests that were refused", "kind", refusals)
        replies = {"401": 0, **self._replies}
        yield _labelled(CounterMetricFamily, "admin_answers", "Replies to operators", "code", replies)
        yield from _several(status)
        yield from _requests(status.get("requests") or {})
        yield from _branches(status.get("branches") or {})
        yield from _clients([row for row in status.get("clients") or () if isinstance(row, Mapping)], self._now)


def _several(status: Mapping[str, Any]) -> Iterator[Metric]:
    """Where several servers share a service: which of them this is, and how it is with the others."""
    rows = [row for row in status.get("servers") or () if isinstance(row, Mapping)]
    if "role" not in status:
        return
    yield from _gauge("leads", "1 while this server leads the service", float(status["role"] == "leader"))
    yield from _gauge("epoch", "How often a server has taken the lead", number(status, "epoch"))
    away = float(bool(status.get("database_problem")))
    yield from _gauge("database_unreachable", "1 while the server's database does not answer", away)
    ready = [row for row in rows if row.get("role") == "standby" and row.get("follows") and not row.get("problem")]
    yield from _gauge("standbys", "Servers that stand by and could lead", float(len(ready)))
    leading = max((number(row, "event") or 0.0 for row in rows if row.get("role") == "leader"), default=0.0)
    behind = [max(leading - (number(row, "event") or 0.0), 0.0) for row in ready]
    yield from _gauge(
        "standby_behind_events", "Events that the nearest standby has yet to apply", min(behind, default=None)
    )
    differ = float(sum(row.get("differed_at") is not None for row in rows))
    yield from _gauge("standbys_differ", "Servers whose state differed from the leader's", differ)


def _requests(timings: Mapping[str, Any]) -> Iterator[Metric]:
    bounds, counts, seconds = timings.get("bounds") or (), timings.get("counts") or (), number(timings, "seconds")
    if seconds is not None and len(counts) == len(bounds) + 1:
        ends = [*map(str, bounds), "+Inf"]
        buckets = list(zip(ends, accumulate(counts), strict=True))
        text = "From a request's last byte to the last of its reply"
        yield HistogramMetricFamily("polytempo_request_seconds", text, buckets=buckets, sum_value=seconds)


def _branches(versions: Mapping[str, Any]) -> Iterator[Metric]:
    yield from _gauge("branches", "Lines of model versions", float(len(versions)))
    yield _labelled(GaugeMetricFamily, "branch_version", "Versions of the first branches", "branch", versions)


def _clients(rows: Sequence[Mapping[str, Any]], now: float) -> Iterator[Metric]:
    doing = {status.name.lower(): 0 for status in Status} | Counter(str(row.get("doing")) for row in rows)
    yield _labelled(GaugeMetricFamily, "clients", "Clients by what they are doing", "status", doing)
    yield from _gauge(
        "connected", "Clients with an open session", float(sum(bool(row.get("connected")) for row in rows))
    )
    quarantined = sum(bool(row.get("quarantined")) for row in rows)
    yield from _gauge("quarantined", "Clients in quarantine", float(quarantined))
    for name, key in (("token", "expires"), ("certificate", "certificate_expires")):
        ends = [end for row in rows if (end := number(row, key)) is not None]
        ending = float(sum(now <= end < now + SOON for end in ends))
        yield from _gauge(f"{name}s_ending_soon", f"Clients whose {name} expires within a week", ending)
    clusters = {row.get("cluster") for row in rows if row.get("cluster") is not None}
    yield from _gauge("clusters", "Clusters that have clients", float(len(clusters)))
    staleness = sorted(value for row in rows if (value := number(row, "staleness")) is not None)
    quantiles = {str(q): _quantile(staleness, q) for q in (0.5, 0.9, 1.0)}
    yield _labelled(GaugeMetricFamily, "staleness", "Staleness of the clients' last updates", "quantile", quantiles)
    accuracy = [value for row in rows if (value := number(row, "accuracy")) is not None]
    yield from _gauge("reporting", "Clients that have reported an accuracy", float(len(accuracy)))
    figures = {"mean": sum(accuracy) / len(accuracy), "min": min(accuracy), "max": max(accuracy)} if accuracy else {}
    text = "Accuracy that clients last reported of the models they received"
    yield _labelled(GaugeMetricFamily, "reported_accuracy", text, "statistic", figures)
    yield from _better_off(rows)


def _better_off(rows: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    """Of the clients that also train alone (``join --shadow``)."""
    pairs = [(number(row, "used"), number(row, "alone")) for row in rows]
    compared = [(used, alone) for used, alone in pairs if used is not None and alone is not None]
    counts = {
        "better": sum(used > alone for used, alone in compared),
        "equal": sum(used == alone for used, alone in compared),
        "worse": sum(used < alone for used, alone in compared),
    }
    text = "Clients by how the model in use does beside one trained alone, as they last reported"
    yield _labelled(GaugeMetricFamily, "better_off", text, "than_alone", counts)


def number(status: Mapping[str, Any], *path: str) -> float | None:
    """The finite number at the end of a path of keys; None if there is none."""
    found: Any = status
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return float(found) if isinstance(found, int | float) and math.isfinite(found) else None


def _gauge(name: str, text: str, value: float | None) -> Iterator[Metric]:
    if value is not None:
        yield GaugeMetricFamily(f"polytempo_{name}", text, value=value)


def _counter(name: str, text: str, value: float | None) -> Iterator[Metric]:
    if value is not None:
        yield CounterMetricFamily(f"polytempo_{name}", text, value=value)


def _labelled(
    family: type[CounterMetricFamily] | type[GaugeMetricFamily],
    name: str,
    text: str,
    label: str,
    values: Mapping[str, Any] | None,
) -> Metric:
    metric = family(f"polytempo_{name}", text, labels=[label])
    known = values or {}
    for word in islice(known, VALUES):
        value = number(known, word)
        if value is not None:
            metric.add_metric([str(word)], value)
    return metric


def _quantile(ordered: Sequence[float], q: float) -> float | None:
    """The smallest value that so large a share of them does not exceed."""
    return ordered[max(math.ceil(q * len(ordered)) - 1, 0)] if ordered else None
