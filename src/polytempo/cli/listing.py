"""``polytempo list``: what there is, with one line each."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from polytempo.core.errors import UserError
from polytempo.learn.models import models
from polytempo.learn.questions import questions
from polytempo.papers import benches
from polytempo.report.csv_table import csv_text
from polytempo.strategies import RECONSTRUCTED, strategies
from polytempo.world.data import datasets
from polytempo.world.device_types import DeviceType, device_types
from polytempo.world.devices import device_mixes
from polytempo.world.partitions import partitions
from polytempo_client.asking.policies import asking_kinds
from polytempo_client.imports import unknown


def _first_sentence(thing: object) -> str:
    return " ".join((thing.__doc__ or "").split("\n\n")[0].replace("``", "").split())


def _strategies() -> Iterable[tuple[str, str]]:
    for name, cls in sorted(strategies.items()):
        settings: Any = cls
        texts = {field: info.description for field, info in settings.__pydantic_fields__.items()}
        values = cls().parameters().items()
        described = [f"\n  {field} = {_value(value)}: {texts[field]}" for field, value in values]
        for preset, sets in cls.presets.items():
            told = ", ".join(f"{field} = {_value(value)}" for field, value in sets.items())
            described.append(f"\n  preset={preset} sets {told}")
        warning = f"\n  {RECONSTRUCTED}" if cls.reconstructed else ""
        summary = _first_sentence(cls).removeprefix("Reconstructed: ")
        yield name, summary[:1].upper() + summary[1:] + warning + "".join(described)


def _value(value: Any) -> str:
    return "unset" if value is None else str(value)


def _described(kind: DeviceType) -> str:
    return (
        f"{kind.title}: {kind.seconds_per_step:.2f} s per step, {kind.up / 1e6:g} MB/s up, {kind.down / 1e6:g} MB/s "
        f"down, {kind.latency:g} s latency."
    )


TABLES = {
    "strategies": _strategies,
    "data": lambda: [(name, source.summary) for name, source in datasets.items()],
    "models": lambda: [(name, _first_sentence(build)) for name, build in models.items()],
    "partitions": lambda: [(kind.form, kind.summary) for _, kind in partitions.items()],
    "devices": lambda: [
        *((mix.form, mix.summary) for _, mix in device_mixes.items()),
        (
            "FILE.toml",
            "device types, network, availability, losses, late joiners, speed changes (docs/guides/devices.md).",
        ),
    ],
    "device-types": lambda: [(name, _described(kind)) for name, kind in device_types.items()],
    "asking": lambda: [(kind.form, f"The client {kind.summary}") for _, kind in asking_kinds.items()],
    "questions": lambda: [(name, _first_sentence(answer)) for name, answer in questions.items()],
    "benches": lambda: [(name, bench.title) for name, bench in benches.items()],
}


def print_listing(what: str, as_csv: bool) -> None:
    """All things of one kind, as a table or as CSV."""
    if as_csv:
        print(csv_text(["name", "summary"], _rows_of(what)), end="")
    else:
        Console().print(_table_of(what))


def _rows_of(what: str) -> list[tuple[str, str]]:
    """Names and summaries."""
    if what not in TABLES:
        raise UserError(unknown("list", what, TABLES))
    return list(TABLES[what]())


def _table_of(what: str) -> Table:
    rows = _rows_of(what)
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(max_width=30, overflow="fold", style="bold")
    table.add_column()
    for name, summary in rows:
        table.add_row(name, Text(summary))  # as it is: rich would read hinge:A:B as an emoji
    return table
