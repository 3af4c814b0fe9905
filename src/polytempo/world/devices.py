"""Devices: how fast each client computes, what its network costs, and when it is there.

Simulated time comes from here only. Who is slow is drawn once per run; everything that varies from round to round is
drawn from a stream keyed by the client and the count of its rounds, so every answer is a pure function.
"""

import math
import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from polytempo.core.errors import UserError
from polytempo.core.registry import Registry
from polytempo.world.device_types import Hardware, hardware_in_words
from polytempo_client.streams import stream

FASTEST = 0.05
"""No draw makes a client or a round faster than this share of its mean."""


class SpeedChange(NamedTuple):
    """From ``at`` on, the clients in the mask need ``factor`` times as long for a step."""

    at: float
    factor: float
    clients: np.ndarray


@dataclass(frozen=True, eq=False)
class Devices:
    """The devices of all clients. Arrays have one float64 per client; times are virtual seconds."""

    seed: int
    seconds_per_step: np.ndarray
    up: np.ndarray
    """Bytes per second from the client to the server."""
    down: np.ndarray
    latency: np.ndarray
    """Seconds per transfer, either way."""
    joins: np.ndarray
    """When each client joins: 0 for most."""
    on: np.ndarray
    """Mean seconds that each client is available at a stretch, and then (off) is not."""
    off: np.ndarray
    jitter: float = 0.05
    """Standard deviation of a round's speed, as a share of the mean."""
    speed_changes: tuple[SpeedChange, ...] = ()
    """Sorted by time."""
    lost: float = 0.0
    """Probability that a dispatched training is lost, and for how many seconds the client then stays away."""
    away: float = 0.0
    think: float = 0.0
    """Mean seconds that a client-driven client waits before it starts again."""
    pull_period: float | None = None
    """Every how many seconds clients fetch their model on their own."""
    kinds: tuple[str, ...] = ()
    """The name of each client's device type, where clients have types."""
    _toggles: dict[int, list[float]] = field(default_factory=dict, repr=False)
    """When a client goes and comes, as far as anyone has asked."""

    def __len__(self) -> int:
        return len(self.seconds_per_step)

    def step_seconds(self, client: int, count: int) -> float:
        """Seconds per step in the client's count-th round, before speed changes: ``t_i max(N(1, jitter^2), 0.05)``."""
        mean = float(self.seconds_per_step[client])
        if self.jitter == 0:
            return mean
        return mean * max(stream(self.seed, "jitter", client, count).normal(1.0, self.jitter), FASTEST)

    def finish(self, client: int, begin: float, steps: float, step_seconds: float) -> float:
        """When ``steps`` steps that began at ``begin`` end; a speed change in the middle counts from its moment."""
        now, left, pace = begin, float(steps), step_seconds
        for at, factor, clients in self.speed_changes:
            if not clients[client]:
                continue
            if at > now:
                if now + left * pace <= at:
                    break
                left -= (at - now) / pace
                now = at
            pace *= factor
        return now + left * pace

    def steps_done(self, client: int, begin: float, now: float, step_seconds: float) -> int:
        """Whole steps done by ``now`` of a training that began at ``begin``: the inverse of ``finish``."""
        since, done, pace = begin, 0.0, step_seconds
        for at, factor, clients in self.speed_changes:
            if at >= now:
                break
            if not clients[client]:
                continue
            if at > since:
                done += (at - since) / pace
                since = at
            pace *= factor
        done += max(now - since, 0.0) / pace
        # A sum of floats may end just short of a whole step.
        return math.floor(done + 1e-6 + 4 * math.ulp(now) / pace)

    def with_faster(self, clients: Sequence[int], factor: float) -> "Devices":
        """The same devices, but for some clients that are so many times as fast."""
        seconds = self.seconds_per_step.copy()
        seconds[list(clients)] /= factor
        return replace(self, seconds_per_step=seconds)

    def of(self, clients: np.ndarray) -> "Devices":
        """Those of some clients, as far as their speed and types are concerned."""
        kinds = tuple(self.kinds[client] for client in clients.tolist()) if self.kinds else ()
        return replace(self, seconds_per_step=self.seconds_per_step[clients], kinds=kinds)

    def down_seconds(self, client: int, nbytes: int) -> float:
        return float(self.latency[client] + nbytes / self.down[client])

    def up_seconds(self, client: int, nbytes: int) -> float:
        return float(self.latency[client] + nbytes / self.up[client])

    def joins_at(self, client: int) -> float:
        return float(self.joins[client])

    def available_from(self, client: int, now: float) -> float:
        """``now`` if the client is available, else the next time it is."""
        now = max(now, self.joins_at(client))
        if self.off[client] == 0:
            return now
        toggles = self._toggles_until(client, now)
        passed = bisect_right(toggles, now)
        return now if passed % 2 else toggles[passed]

    def dropout(self, client: int, count: int) -> tuple[float, float] | None:
        """None, or: the count-th training is lost after this share of it, and the client stays away so many seconds."""
        if self.lost == 0:
            return None
        rng = stream(self.seed, "lost training", client, count)
        return (rng.random(), self.away) if rng.random() < self.lost else None

    def think_seconds(self, client: int, count: int) -> float:
        """How long the client waits before it starts its count-th round on its own: exponential."""
        return stream(self.seed, "think", client, count).exponential(self.think) if self.think else 0.0

    def pull_every(self, client: int) -> float | None:
        return self.pull_period

    def fastest_fifth(self) -> np.ndarray:
        """A fifth of the clients, at least one: those with the fewest seconds per step; ties go by number."""
        return np.argsort(self.seconds_per_step, kind="stable")[: max(1, len(self) // 5)]

    def slowest_fifth(self) -> np.ndarray:
        return np.argsort(self.seconds_per_step, kind="stable")[-max(1, len(self) // 5) :]

    def clients_by_kind(self) -> dict[str, np.ndarray]:
        """The clients of each device type, the fastest type first; empty where clients have no types."""
        names = np.array(self.kinds)
        found = {name: np.flatnonzero(names == name) for name in sorted(set(self.kinds))}
        return dict(sorted(found.items(), key=lambda kind: float(self.seconds_per_step[kind[1]].mean())))

    def fastest_device(self) -> np.ndarray:
        """The clients of the fastest device type; where clients have no types, the one fastest client."""
        return next(iter(self.clients_by_kind().values()), self.fastest_fifth()[:1])

    def slowest_device(self) -> np.ndarray:
        return next(reversed(self.clients_by_kind().values()), self.slowest_fifth()[-1:])

    def _toggles_until(self, client: int, now: float) -> list[float]:
        """The client comes at the even entries and goes at the odd ones; the last entry lies after ``now``.

        Lengths are exponential, hence memoryless: a client that is on at time 0 has come at time 0.
        """
        toggles, on, off = self._toggles.get(client), float(self.on[client]), float(self.off[client])
        if toggles is None:
            rng = stream(self.seed, "availability", client)
            on_at_zero = rng.random() < on / (on + off)
            toggles = self._toggles[client] = [0.0 if on_at_zero else rng.exponential(off)]
        while toggles[-1] <= now:
            rng = stream(self.seed, "availability", client, len(toggles))
            lengths = rng.exponential((on, off), (8, 2)).ravel()
            toggles.extend((toggles[-1] + np.cumsum(lengths)).tolist())
        return toggles


class DeviceMix(NamedTuple):
    """One way to give clients their devices."""

    form: str
    """How it is written on the command line."""
    summary: str
    draw: Callable[[str, int, int], Hardware]
    """(parameter, clients, seed) -> everybody's hardware; ValueError for a bad parameter."""


def make_devices(spec: str, clients: int, seed: int) -> Devices:
    """The devices for a word of the command line, such as ``slow:0.3x5``, or for a file (docs/guides/devices.md)."""
    if clients < 1:
        raise UserError(f"There must be at least one client, not {clients}.")
    file = device_file(spec)
    if file is not None:
        from polytempo.world.device_files import devices_from_file  # a file may name a mix of this module

        return devices_from_file(file, clients, seed)
    hardware = draw_hardware(spec, clients, seed)
    joins, on, off = np.zeros(clients), np.full(clients, math.inf), np.zeros(clients)
    return Devices(seed, *hardware[:4], joins, on, off, kinds=hardware.kinds)


def devices_with(seconds_per_step: np.ndarray, clients: int, seed: int) -> Devices:
    """Devices with these mean seconds per step; communication takes no time, and everybody is always there."""
    if len(seconds_per_step) != clients:
        raise UserError(f"devices has the seconds of {len(seconds_per_step)} clients. Expected those of {clients}.")
    free, always = np.full(clients, np.inf), np.full(clients, math.inf)
    return Devices(seed, seconds_per_step, free, free, np.zeros(clients), np.zeros(clients), always, np.zeros(clients))


def device_file(spec: str) -> Path | None:
    """The path, if the words name no mix but a file: any that exists, or one that ends in .toml."""
    is_mix = spec.partition(":")[0] in device_mixes
    return Path(spec) if not is_mix and (spec.endswith(".toml") or os.path.isfile(spec)) else None


def draw_hardware(spec: str, clients: int, seed: int) -> Hardware:
    """The hardware of each client, for a mix in words."""
    name, _, parameter = spec.partition(":")
    mix = device_mixes[name]
    try:
        return mix.draw(parameter, clients, seed)
    except ValueError:
        raise UserError(f"Devices {spec!r} are not understood. Expected {mix.form}: {mix.summary}") from None


def _speeds(draw: Callable[[str, int, np.random.Generator], np.ndarray]) -> Callable[[str, int, int], Hardware]:
    """A mix from a function that draws relative seconds per step, mean or fastest 1; communication takes no time."""

    def hardware(parameter: str, clients: int, seed: int) -> Hardware:
        free = np.full(clients, np.inf)
        return Hardware(draw(parameter, clients, stream(seed, "devices")), free, free, np.zeros(clients))

    return hardware


def _homogeneous(parameter: str, clients: int, rng: np.random.Generator) -> np.ndarray:
    _require(parameter == "")
    return np.ones(clients)


def _normal(parameter: str, clients: int, rng: np.random.Generator) -> np.ndarray:
    deviation = float(parameter or 0.3)
    _require(0 <= deviation < math.inf)
    return np.maximum(rng.normal(1.0, deviation, clients), FASTEST)


def _exponential(parameter: str, clients: int, rng: np.random.Generator) -> np.ndarray:
    _require(parameter == "")
    return np.maximum(rng.exponential(1.0, clients), FASTEST)


def _slow(parameter: str, clients: int, rng: np.random.Generator) -> np.ndarray:
    share, factor = map(float, (parameter or "0.3x5").split("x"))
    _require(0 <= share <= 1 and 0 < factor < math.inf)
    speeds = np.ones(clients)
    speeds[rng.permutation(clients)[: round(share * clients)]] = factor
    return speeds


def _uniform(parameter: str, clients: int, rng: np.random.Generator) -> np.ndarray:
    ratio = float(parameter or 5)
    _require(1 <= ratio < math.inf)
    return rng.uniform(1.0, ratio, clients)


def _require(condition: bool) -> None:
    if not condition:
        raise ValueError


device_mixes: Registry[DeviceMix] = Registry("device mix")
device_mixes.add("homogeneous", DeviceMix("homogeneous", "every client needs 1 s per step.", _speeds(_homogeneous)))
device_mixes.add("normal", DeviceMix("normal:0.3", "normal with mean 1 s and this deviation.", _speeds(_normal)))
device_mixes.add("exponential", DeviceMix("exponential", "exponential with mean 1 s.", _speeds(_exponential)))
device_mixes.add("slow", DeviceMix("slow:0.3x5", "this share of the clients is slower by this factor.", _speeds(_slow)))
device_mixes.add("uniform", DeviceMix("uniform:5", "uniform between 1 s and this many seconds.", _speeds(_uniform)))
device_mixes.add(
    "types",
    DeviceMix(
        "types, types:D1=0.2,D5=0.8 or types:D1*3,D2*2,D5",
        "named device types (polytempo list device-types) with their network: EchoPFL's mix, other shares, or one per "
        "client in order. A D1 needs 1 s per step.",
        hardware_in_words,
    ),
)
