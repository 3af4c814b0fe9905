"""Device types: named machines with a speed and a network, and who of the clients has which.

The known ones are those of EchoPFL (section 7.1), which names them and gives no figures. So ours follow one rule: the
seconds per step are in inverse proportion to the peak single-precision rate that the makers' data sheets imply (cores x
clock x operations per cycle). All share one wireless network of our choice, with the paper's downlink ten times as fast
as the uplink.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from polytempo.core.errors import UserError
from polytempo.core.registry import Registry
from polytempo.world.tables import apportioned
from polytempo_client.streams import stream

T = TypeVar("T", int, float)

ECHOPFL_MIX = "D1=0.2,D2=0.2,D3=0.2,D5=0.4"
"""The devices of EchoPFL's simulated experiments."""


class DeviceType(NamedTuple):
    """A kind of device. Seconds per step are relative to the base, up and down are bytes per second, latency is seconds
    per transfer."""

    name: str
    seconds_per_step: float
    up: float = math.inf
    down: float = math.inf
    latency: float = 0.0
    title: str = ""
    """The name in full."""


class Hardware(NamedTuple):
    """What all clients compute and communicate with, as arrays with one entry per client. ``kinds`` are the names of
    their device types, empty where there are none."""

    seconds_per_step: np.ndarray
    """Relative to the base."""
    up: np.ndarray
    down: np.ndarray
    latency: np.ndarray
    kinds: tuple[str, ...] = ()


device_types: Registry[DeviceType] = Registry("device type")
for _name, _title, _gigaflops in (
    ("D1", "Jetson Nano", 236),  # 128 cores x 0.92 GHz x 2
    ("D2", "Jetson Xavier NX", 845),  # 384 cores x 1.1 GHz x 2
    ("D3", "Jetson Orin Nano", 1280),  # 1024 cores x 0.625 GHz x 2
    ("D4", "Jetson AGX Xavier", 1410),  # 512 cores x 1.377 GHz x 2
    ("D5", "Raspberry Pi 4", 48),  # 4 cores x 1.5 GHz x 8
):
    device_types.add(_name, DeviceType(_name, 236 / _gigaflops, 1.25e6, 12.5e6, 0.02, _title))


def hardware_in_words(text: str, clients: int, seed: int) -> Hardware:
    """The clients' devices for shares (``D1=0.2,D5=0.8``), for a list in the order of the clients (``D1*3,D2*2,D5``),
    or for nothing: EchoPFL's mix. ValueError for anything else."""
    words = (text or ECHOPFL_MIX).split(",")
    if any("=" in word for word in words):
        types, shares = _typed(words, "=", float)
        if abs(sum(shares) - 1) > 1e-6:
            raise UserError(f"The shares of the device types {text} sum to {sum(shares):g}, expected 1.")
        return hardware_of(deal_types(types, shares, clients, seed))
    types, counts = _typed([word if "*" in word else f"{word}*1" for word in words], "*", int)
    if sum(counts) != clients:
        raise UserError(
            f"The device types {text} are those of {sum(counts)} clients, and there are {clients}. "
            f"Name one per client (D1*3 stands for three D1), or give shares: types:{ECHOPFL_MIX}."
        )
    return hardware_of([kind for kind, count in zip(types, counts, strict=True) for _ in range(count)])


def deal_types(types: Sequence[DeviceType], shares: Sequence[float], clients: int, seed: int) -> list[DeviceType]:
    """A type for each client: exactly the shares, rounded; which client has which type is drawn."""
    counts = apportioned(clients, np.array(shares))
    numbers = stream(seed, "device types").permutation(np.repeat(np.arange(len(types)), counts))
    return [types[number] for number in numbers]


def hardware_of(types: Sequence[DeviceType]) -> Hardware:
    """The hardware of clients with these types, one for each."""
    return Hardware(
        np.array([kind.seconds_per_step for kind in types]),
        np.array([kind.up for kind in types]),
        np.array([kind.down for kind in types]),
        np.array([kind.latency for kind in types]),
        tuple(kind.name for kind in types),
    )


def _typed(words: Sequence[str], sign: str, number: Callable[[str], T]) -> tuple[list[DeviceType], list[T]]:
    """The types and the numbers of words such as ``D1=0.2``."""
    parts = [word.split(sign) for word in words]
    if any(len(part) != 2 or not 0 < float(part[1]) < math.inf for part in parts):
        raise ValueError
    return [device_types[name.strip()] for name, _ in parts], [number(text) for _, text in parts]
