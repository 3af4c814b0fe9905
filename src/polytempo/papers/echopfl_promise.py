"""What EchoPFL promises: nobody is served worse for being slow. Not a table of its paper."""

from typing import Any

from polytempo.papers.bench import Bench, Case, Column, Table, benches
from polytempo.papers.echopfl import LITERAL, METHODS, NO_BROADCAST, ON_DIGITS, SERVED
from polytempo.papers.natural import UCI
from polytempo.report.run import Run

SLOW = {"devices": "slow:0.3x5", "updates": 2_000}
GROUPS = {**SLOW, "clients": 50, "partition": "groups"}
PROMISE: dict[str, tuple[str, dict[str, Any]]] = {
    "mnist-groups": ("MNIST, four groups", {**GROUPS, "data": "mnist", "model": "mlp", "eval_every": 200}),
    "cifar10-groups": (
        "CIFAR-10, four groups",
        {**GROUPS, "data": "cifar10", "model": "lenet", "lr": 0.02, "test_share": 0.8, "eval_every": 400},
    ),
    "uci-har": ("UCI-HAR, 30 wearers", {**UCI, "model": "mlp", "eval_every": 300}),
}
KEPT = {
    "fedasync": {"strategy": "fedasync"},
    "echopfl": METHODS["echopfl"],
    "no broadcast": NO_BROADCAST,
    LITERAL: METHODS[LITERAL],
}
SLOWEST_FIFTH = Column("accuracy_slowest_fifth", "slowest fifth %", scale=100.0, digits=1)


def in_the_same_time(run: Run, base: Run) -> float | None:
    """The accuracy of the slowest fifth at the last evaluation before the other run ends."""
    in_time = run.over_evaluations("time") <= base.figure("virtual_time")
    return float(run.over_evaluations("accuracy_slowest_fifth")[in_time][-1])


benches.add(
    "echopfl-promise",
    Bench(
        "echopfl-promise",
        "EchoPFL: are slow clients served as well as by FedAsync?",
        "Not from the paper. 30 % of the clients are slow by 5; FedAsync has its default parameters here, and is what "
        "clients are compared with, not what they have alone.",
        [
            Table(
                name,
                title,
                "",
                settings,
                [Case(label, case, base="fedasync") for label, case in KEPT.items()],
                (
                    SLOWEST_FIFTH,
                    Column(
                        "in_the_same_time",
                        "slowest fifth %, when FedAsync's run ends",
                        scale=100.0,
                        digits=1,
                        compare=in_the_same_time,
                    ),
                    SERVED,
                    Column("downloads_ratio", "downloads / FedAsync's"),
                    Column("virtual_time", "virtual time / FedAsync's", relative=True),
                    Column("clusters", "clusters", digits=1),
                ),
                block="Slowest fifth",
                heading=title,
            )
            for name, (title, settings) in PROMISE.items()
        ],
        {**ON_DIGITS, "updates": 400, "eval_every": 100, "partition": "groups"},
        overview=SLOWEST_FIFTH,
        seeds=10,
        first_seed=61,
        recorded=True,
    ),
)
