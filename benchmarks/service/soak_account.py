"""What ``soak.py`` keeps account of, what it promises, and how it is shown."""

import os
import shutil
import sqlite3
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from serving_load import memory
from soak_clients import Told

from polytempo.core.state import digest
from polytempo.serve.journal.files.segments import SEGMENT_BYTES
from polytempo.serve.journal.journal import Journal
from polytempo.serve.journal.replay import replay
from polytempo.serve.journal.snapshots import SNAPSHOT_BYTES
from polytempo.serve.paths import DATABASE

MINUTE = 60.0
MOST_JOURNAL = (3 * SNAPSHOT_BYTES + 3 * SEGMENT_BYTES) / 1e6
"""Megabytes: two snapshots are kept with what came since the older one, and a third may be on its way."""
MINUTES_TO_JUDGE = 10
GROWTH, SLACK_MB, SLACK_MS = 1.3, 30.0, 50.0
"""In the second half memory may peak at so many times the first half's peak, and p99 be so much higher, and some, if
there are enough minutes to tell."""


# What a journal says. In a process of its own, which gives way to everybody else.


@dataclass
class Checked:
    """A copy of the journal, replayed."""

    last: int
    counted: dict[int, int]
    """Updates of each client, as the state says."""
    digests: int = 0
    """That were compared, ..."""
    wrong: list[str] = field(default_factory=list)


def check(copy: Path, strategy: str) -> Checked:
    """A replay from the oldest snapshot has to come by the state that the running server wrote as its newest."""
    journal = Journal(copy)
    snapshots = journal.snapshots()
    written = digest(journal.load_snapshot(snapshots[-1]))
    journal.close()
    replayed = replay(copy, allowed=[strategy])
    checked = Checked(replayed.event, {client: member.updates for client, member in replayed.service.members.items()})
    if len(snapshots) > 1:
        checked.digests = 1
        found = replay(copy, snapshots[-1], allowed=[strategy]).figures()["digest"]
        if found != written:
            checked.wrong.append(f"the server's state after event {snapshots[-1]} is {written}, a replay's {found}")
    shutil.rmtree(copy)
    return checked


def linked_copy(journal: Path, to: Path) -> Path:
    """What the dead server left. Its large files are not changed by the next one, so links do."""
    to.mkdir()
    for path in journal.iterdir():
        if path.name.startswith(DATABASE):
            shutil.copy(path, to)
        elif path.suffix in (".bodies", ".safetensors", ".npz") and not path.name.startswith("."):
            os.link(path, to / path.name)
    return to


# The account.


@dataclass
class Minute:
    """What one minute was like."""

    updates: int = 0
    latencies: list[float] = field(default_factory=list)
    memory: float = 0.0
    """Most megabytes, ..."""
    journal: float = 0.0
    """... and of the journal's directory."""

    def milliseconds(self, share: float) -> float | None:
        return 1e3 * float(np.quantile(self.latencies, share)) if self.latencies else None

    def row(self) -> dict[str, float | None]:
        figures = {"memory_mb": self.memory, "journal_mb": self.journal}
        return {"updates": self.updates, "p50_ms": self.milliseconds(0.5), "p99_ms": self.milliseconds(0.99), **figures}


@dataclass
class Account:
    """Everything that was seen."""

    began: float
    applied: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Client and task of each update in the journal, by the event's number."""
    begun: set[tuple[int, int]] = field(default_factory=set)
    acknowledged: Counter[tuple[int, int]] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    minutes: list[Minute] = field(default_factory=list)
    stops: list[dict[str, float | str]] = field(default_factory=list)
    digests: int = 0
    wrong: list[str] = field(default_factory=list)

    def minute(self, at: float) -> Minute:
        number = max(int((at - self.began) // MINUTE), 0)
        self.minutes += [Minute() for _ in range(number + 1 - len(self.minutes))]
        return self.minutes[number]

    def add(self, told: Told) -> None:
        self.begun.update(told.begun)
        self.acknowledged.update(told.acknowledged)
        self.counts += told.counts
        self.wrong += told.faults
        for at, seconds in told.latencies:
            self.minute(at).latencies.append(seconds)

    def look(self, directory: Path, server: int | None = None) -> None:
        """At the journal's new rows, before they are forgotten, and at how much room everything takes. ``server`` is
        the number of its process, if it runs."""
        journal, minute = directory / "journal", self.minute(time.time())
        if not (journal / DATABASE).exists():
            return
        with closing(sqlite3.connect(journal / DATABASE, timeout=30)) as database:
            rows = database.execute(
                "SELECT number, client, json_extract(detail, '$.task') FROM events WHERE kind = 'updated' AND "
                "void IS NULL AND number > ?",
                (max(self.applied, default=0),),
            ).fetchall()
        self.applied.update({number: (client, task) for number, client, task in rows})
        minute.updates += len(rows)
        minute.journal = max(minute.journal, size_of(journal) / 1e6)
        if server is not None:
            with suppress(FileNotFoundError, StopIteration):  # it has just ended
                minute.memory = max(minute.memory, memory(server))

    def compare(self, checked: Checked, acknowledged: set[tuple[int, int]]) -> None:
        """What was acknowledged by the time of a kill has to be in the copy that was made then, once."""
        here = Counter(pair for number, pair in self.applied.items() if number <= checked.last)
        self.digests += checked.digests
        self.wrong += checked.wrong
        self.wrong += [f"client {c}, task {t} was acknowledged and is lost" for c, t in acknowledged - set(here)]
        self.wrong += [f"client {c}, task {t} is there {times} times" for (c, t), times in here.items() if times > 1]
        counted = Counter(client for client, _ in here.elements())
        self.wrong += [
            f"after event {checked.last} the state counts {checked.counted.get(client, 0)} updates of client {client}, "
            f"the journal {counted[client]}"
            for client in {*counted, *checked.counted}
            if checked.counted.get(client, 0) != counted[client]
        ]


def size_of(directory: Path) -> int:
    total = 0
    for path in directory.iterdir():
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # the server has just forgotten it
            continue
    return total


def broken_bounds(account: Account) -> list[str]:
    """Promises about what is measured that were not kept."""
    whole = [minute for minute in account.minutes[:-1] if minute.latencies]
    halves = whole[: len(whole) // 2], whole[len(whole) // 2 :]
    broken = []
    most = max(minute.journal for minute in account.minutes)
    if most > MOST_JOURNAL:
        broken.append(f"the journal had {most:.0f} MB, more than {MOST_JOURNAL:.0f}")
    if len(whole) >= MINUTES_TO_JUDGE:
        first, second = (max(minute.memory for minute in half) for half in halves)
        if second > GROWTH * first + SLACK_MB:
            broken.append(f"memory grew from {first:.0f} to {second:.0f} MB")
        first, second = (float(np.median([minute.milliseconds(0.99) for minute in half])) for half in halves)
        if second > GROWTH * first + SLACK_MS:
            broken.append(f"the median p99 of a minute rose from {first:.0f} to {second:.0f} ms")
    return broken


# What is left of it.


def summary(account: Account, in_quarantine: list[int]) -> dict[str, object]:
    latencies = [seconds for minute in account.minutes for seconds in minute.latencies]
    kills = [stop for stop in account.stops if stop["kind"] == "kill"]
    drains = [stop for stop in account.stops if stop["kind"] == "drain"]
    return {
        "updates in the journal": len(account.applied),
        "updates acknowledged": len(account.acknowledged),
        "p50, ms": round(1e3 * float(np.quantile(latencies, 0.5)), 1),
        "p99, ms": round(1e3 * float(np.quantile(latencies, 0.99)), 1),
        "most memory, MB": round(max(minute.memory for minute in account.minutes)),
        "largest journal, MB": round(max(minute.journal for minute in account.minutes)),
        "kills": len(kills),
        "down per kill, s (median, longest)": _spread([float(stop["down"]) for stop in kills]),
        "drains": len(drains),
        "down per drain, s (median, longest)": _spread([float(stop["down"]) for stop in drains]),
        "digests compared": account.digests,
        "clients in quarantine": len(in_quarantine),
        "messages of rubbish": sum(n for name, n in account.counts.items() if name.startswith("rubbish: ")),
        "visits of strangers": sum(n for name, n in account.counts.items() if name.startswith("stranger: ")),
    }


def _spread(seconds: list[float]) -> str:
    return f"{np.median(seconds):.1f}, {max(seconds):.1f}" if seconds else "–"


def print_table(account: Account, figures: dict[str, object]) -> None:
    print("minute  updates  p50 ms  p99 ms  memory MB  journal MB")
    for number, minute in enumerate(account.minutes):
        p50, p99 = (minute.milliseconds(share) for share in (0.5, 0.99))
        shown = f"{p50:>7.1f} {p99:>7.1f}" if p50 is not None and p99 is not None else f"{'–':>7} {'–':>7}"
        print(f"{number:>6} {minute.updates:>8} {shown} {minute.memory:>10.0f} {minute.journal:>11.0f}")
    for name, value in figures.items():
        print(f"{name:<38}{value!s:>14}")


def draw(account: Account, to: Path) -> None:
    figure, rows = plt.subplots(4, 1, sharex=True, figsize=(9, 9), layout="constrained")
    at = np.arange(len(account.minutes)) + 0.5
    series = [
        ("memory of the server, MB", [("", [minute.memory or np.nan for minute in account.minutes])]),
        ("journal's directory, MB", [("", [minute.journal for minute in account.minutes])]),
        ("exchange, ms", [(f"p{share * 100:.0f}", _quantiles(account, share)) for share in (0.5, 0.99)]),
        ("updates per minute", [("", [minute.updates for minute in account.minutes])]),
    ]
    for axes, (title, lines) in zip(rows, series, strict=True):
        for label, values in lines:
            axes.plot(at, values, label=label, linewidth=1.5, marker=".")
        for stop in account.stops:
            axes.axvline(float(stop["at"]) / MINUTE, color="C3" if stop["kind"] == "kill" else "C2", linewidth=0.6)
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_ylim(0, 1.1 * np.nanmax([values for _, values in lines]))
        axes.grid(alpha=0.3)
    rows[2].legend(frameon=False)
    rows[-1].set_xlabel("minutes (red: kill -9, green: SIGTERM)")
    for ending in ("svg", "png"):
        figure.savefig(to / f"soak.{ending}", dpi=120)
    plt.close(figure)


def _quantiles(account: Account, share: float) -> list[float]:
    return [np.nan if (value := minute.milliseconds(share)) is None else value for minute in account.minutes]
