"""What encoded updates and models cost in accuracy, and what they save in bytes and in time. No paper's."""

from pathlib import Path
from typing import Any

from polytempo.papers.bench import Bench, Case, Column, Table, benches
from polytempo.report.run import Run

WORLD: dict[str, Any] = {
    "data": "mnist",
    "model": "mlp",
    "clients": 30,
    "batch_size": 20,
    "steps": 30,
    "lr": 0.1,
    "updates": 1_500,
    "eval_every": 60,
    "target": 0.9,
    "stop_at_target": False,
}
NARROW_BAND = {"devices": str(Path(__file__).parent / "devices" / "narrow-band.toml")}
WORLDS: dict[str, tuple[str, dict[str, str]]] = {
    "dirichlet": ("Dir(0.5), on a narrow band", {**NARROW_BAND, "partition": "dirichlet:0.5"}),
    "groups": ("four groups with labels of their own, on a narrow band", {**NARROW_BAND, "partition": "groups"}),
    "same-times": (
        "Dir(0.5), transfers take no time",
        {"devices": "slow:0.3x5", "partition": "dirichlet:0.5"},
    ),
}
METHODS = ("fedasync", "fedbuff", "casa")
ENCODINGS = {
    "": {},
    ", fp16 up and down": {"upload": "fp16", "download": "fp16"},
    ", topk:0.1 up": {"upload": "topk:0.1"},
    ", topk:0.01 up, fp16 down": {"upload": "topk:0.01", "download": "fp16"},
}
SET_UP = (
    "MNIST, an mlp (784-100-10, 318 kB in float32), 30 clients of whom 30 % are slow by 5, 50 updates per client on "
    "average of 30 steps with batch 20 and learning rate 0.1. The narrow band: 100 kbit/s up, 1 Mbit/s down. Accuracy "
    "is the mean over all clients' own test data of the model that each is served; points are those above or below the "
    "method's own row in float32, seed by seed. On the narrow band shorter transfers also change who arrives when; "
    "where transfers take no time all rows of a method have the same arrivals."
)


def points(run: Run, base: Run) -> float:
    """How much more of the test data is right than with the base."""
    return float(run.figure("accuracy") - base.figure("accuracy"))


COLUMNS = (
    Column("accuracy", "accuracy %", scale=100.0),
    Column("points", "points", scale=100.0, compare=points),
    Column("bytes_up", "MB up", scale=1e-6),
    Column("bytes_down", "MB down", scale=1e-6),
    Column("time_to_target", "s to 90 %", digits=0, missing="not reached"),
    Column("virtual_time", "s in all", digits=0),
    Column("clusters", "clusters", digits=1),
)


def _table(name: str) -> Table:
    title, world = WORLDS[name]
    cases = [
        Case(f"{method}{words}", {"strategy": method, **encoding}, base=method)
        for method in METHODS
        for words, encoding in ENCODINGS.items()
    ]
    return Table(name, f"MNIST, {title}", "", {**WORLD, **world}, cases, COLUMNS)


benches.add(
    "compression",
    Bench(
        "compression",
        "Compression on the wire",
        SET_UP,
        [_table(name) for name in WORLDS],
        {"data": "digits", "clients": 20, "batch_size": 10, "steps": 20, "updates": 400, "eval_every": 40},
        quick_tables=2,
    ),
)
