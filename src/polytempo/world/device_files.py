"""Devices from a TOML file: speeds, device types or one table per client; network, availability, dropout, late joiners,
speed changes."""

import math
from pathlib import Path
from typing import Self

import numpy as np
from pydantic import Field, model_validator

from polytempo.core.errors import UserError
from polytempo.world.device_types import DeviceType, Hardware, deal_types, device_types, hardware_of
from polytempo.world.devices import Devices, SpeedChange, draw_hardware
from polytempo.world.tables import FileTable, Who, checked, chosen, read_toml
from polytempo_client.streams import stream


class NetworkTable(FileTable):
    """Bytes per second from and to a client, and seconds of latency per transfer."""

    up: float = Field(default=math.inf, gt=0, allow_inf_nan=True)
    down: float = Field(default=math.inf, gt=0, allow_inf_nan=True)
    latency: float = Field(default=0.0, ge=0)


class TypeTable(FileTable):
    """A kind of device, and the share of the clients that have one. A known device type (D1) needs no more than its
    name and share; what is given beside them wins. Of any other, the seconds per step must be given."""

    name: str
    share: float = Field(gt=0)
    seconds_per_step: float | None = Field(default=None, gt=0)
    """As a multiple of the file's base."""
    up: float | None = Field(default=None, gt=0, allow_inf_nan=True)
    down: float | None = Field(default=None, gt=0, allow_inf_nan=True)
    latency: float | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _has_a_speed(self) -> Self:
        if self.seconds_per_step is None and self.name not in device_types:
            raise ValueError(
                f"{self.name} is no known device type ({', '.join(device_types)}), so it needs seconds_per_step"
            )
        return self

    def device_type(self) -> DeviceType:
        given = self.model_dump(exclude={"share"}, exclude_none=True)
        return device_types[self.name]._replace(**given) if self.name in device_types else DeviceType(**given)


class Availability(FileTable):
    """Mean seconds on and off, both exponential."""

    on: float = Field(gt=0)
    off: float = Field(gt=0)


class ClientTable(FileTable):
    """One client by its number: its own speed, network and availability. Without the last it is always there."""

    number: int = Field(ge=0)
    seconds_per_step: float = Field(gt=0)
    """As a multiple of the file's base."""
    up: float = Field(default=math.inf, gt=0, allow_inf_nan=True)
    down: float = Field(default=math.inf, gt=0, allow_inf_nan=True)
    latency: float = Field(default=0.0, ge=0)
    availability: Availability | None = None


class Dropout(FileTable):
    """The probability that a dispatched training is lost, and the seconds that the client then stays away."""

    probability: float = Field(ge=0, lt=1)
    away: float = Field(default=0.0, ge=0)


class Late(FileTable):
    """Clients that join at a time, or each at a random time up to ``by``."""

    clients: Who
    at: float | None = Field(default=None, ge=0)
    by: float | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _one_time(self) -> Self:
        if (self.at is None) == (self.by is None):
            raise ValueError("late clients need either at (all at this time) or by (at random up to this time)")
        return self


class Change(FileTable):
    """From ``at`` on, a step takes these clients ``factor`` times as long."""

    at: float = Field(ge=0)
    factor: float = Field(gt=0)
    clients: Who = "all"


class DeviceFile(FileTable):
    """Everything that a file may say. What it does not say is as for a word of the command line."""

    seconds_per_step: float = Field(default=1.0, gt=0)
    """Of a client whose relative speed is 1."""
    speed: str | None = None
    jitter: float = Field(default=0.05, ge=0)
    think: float = Field(default=0.0, ge=0)
    pull_every: float | None = Field(default=None, gt=0)
    network: NetworkTable | None = None
    availability: Availability | None = None
    dropout: Dropout | None = None
    late: tuple[Late, ...] = ()
    speed_change: tuple[Change, ...] = ()
    type: tuple[TypeTable, ...] = ()
    client: tuple[ClientTable, ...] = ()

    @model_validator(mode="after")
    def _one_source_of_speed(self) -> Self:
        if self.type and self.speed is not None:
            raise ValueError("speed and [[type]] both set the clients' speed; keep one of them")
        if self.type and self.network is not None:
            raise ValueError("with [[type]], give up, down and latency in each type instead of [network]")
        if self.type and abs(sum(kind.share for kind in self.type) - 1) > 1e-6:
            raise ValueError(f"the types' shares sum to {sum(kind.share for kind in self.type):g}, expected 1")
        return self

    @model_validator(mode="after")
    def _one_table_per_client(self) -> Self:
        if not self.client:
            return self
        for name in ("type", "speed", "network", "availability"):
            if getattr(self, name):
                raise ValueError(f"{name} cannot be used with [[client]]: each client's table says that of its client")
        numbers = sorted(table.number for table in self.client)
        if numbers != list(range(len(numbers))):
            raise ValueError(
                f"the numbers in the [[client]] tables are {_shortened(numbers)}; expected 0 to {len(numbers) - 1}, "
                "each once"
            )
        return self


def _shortened(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:10])) + (" ..." if len(numbers) > 10 else "")


def devices_from_file(path: Path, clients: int, seed: int) -> Devices:
    """The devices that a file describes, for this many clients."""
    file, where = checked(DeviceFile, read_toml(path), str(path)), str(path)
    if file.client and clients > len(file.client):
        raise UserError(
            f"{where} describes {len(file.client)} clients, and there are {clients}. Use --clients "
            f"{len(file.client)} or fewer, or add [[client]] tables."
        )
    hardware = _hardware(file, clients, seed)
    on, off = _availability(file, clients)
    return Devices(
        seed=seed,
        seconds_per_step=file.seconds_per_step * hardware.seconds_per_step,
        up=hardware.up,
        down=hardware.down,
        latency=hardware.latency,
        joins=_joins(file.late, clients, seed, where),
        jitter=file.jitter,
        speed_changes=_speed_changes(file.speed_change, clients, seed, where),
        on=on,
        off=off,
        lost=file.dropout.probability if file.dropout else 0.0,
        away=file.dropout.away if file.dropout else 0.0,
        think=file.think,
        pull_period=file.pull_every,
        kinds=hardware.kinds,
    )


def _hardware(file: DeviceFile, clients: int, seed: int) -> Hardware:
    """From the tables of clients or types, or from the speed in words, on the network of the file where it has one."""
    if file.client:
        rows = [(table.seconds_per_step, table.up, table.down, table.latency) for table in _by_number(file)[:clients]]
        pace, up, down, latency = np.array(rows).T
        return Hardware(pace, up, down, latency)
    if file.type:
        types, shares = [table.device_type() for table in file.type], [table.share for table in file.type]
        return hardware_of(deal_types(types, shares, clients, seed))
    hardware = draw_hardware(file.speed or "homogeneous", clients, seed)
    if file.network is None:
        return hardware
    up, down, latency = (
        np.full(clients, value) for value in (file.network.up, file.network.down, file.network.latency)
    )
    return hardware._replace(up=up, down=down, latency=latency)


def _availability(file: DeviceFile, clients: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean seconds on and off of each client."""
    if file.client:
        tables = [table.availability for table in _by_number(file)[:clients]]
    else:
        tables = [file.availability] * clients
    on = [math.inf if table is None else table.on for table in tables]
    off = [0.0 if table is None else table.off for table in tables]
    return np.array(on), np.array(off)


def _by_number(file: DeviceFile) -> list[ClientTable]:
    return sorted(file.client, key=lambda table: table.number)


def _joins(late: tuple[Late, ...], clients: int, seed: int, where: str) -> np.ndarray:
    joins = np.zeros(clients)
    for number, group in enumerate(late):
        rng = stream(seed, "late", number)
        mask = chosen(group.clients, clients, rng, f"{where}: late.{number}")
        joins[mask] = group.at if group.by is None else rng.uniform(0.0, group.by, int(mask.sum()))
    return joins


def _speed_changes(changes: tuple[Change, ...], clients: int, seed: int, where: str) -> tuple[SpeedChange, ...]:
    drawn = [
        SpeedChange(
            change.at,
            change.factor,
            chosen(change.clients, clients, stream(seed, "speed changes", number), f"{where}: speed_change.{number}"),
        )
        for number, change in enumerate(changes)
    ]
    return tuple(sorted(drawn, key=lambda change: change.at))
