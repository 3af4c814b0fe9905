"""What FedCompass's paper shows (Li et al., ICLR 2024, section 5.2 and appendix G), as experiments."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from polytempo.papers.bench import Bench, Case, Column, Table, benches
from polytempo.papers.figures import ALONE, BEST, LENGTH, OFF, OWN

# The worlds: how many clients, how unequal, and how the data are divided among them.

CLIENTS = (5, 10, 20)
Q = {5: 200, 10: 200, 20: 100}
BUFFER = {5: 3, 10: 3, 20: 5}
DEVICES = {"homogeneous": "homogeneous", "normal": "normal:0.3", "exponential": "exponential"}
PARTITIONS = {"class": "class", "Dirichlet": "dual-dirichlet"}


def _world(clients: int, devices: str, partition: str) -> dict[str, Any]:
    return {
        "data": "mnist",
        "model": "lenet",
        "clients": clients,
        "devices": DEVICES[devices],
        "partition": PARTITIONS[partition],
        "steps": Q[clients],
        "batch_size": 64,
        "optimizer": "adam",
        "lr": 0.003,
        "test_share": 0.1,
        "target": 0.9,
        "eval_every": 1,
        "time": 5_000.0,
        "updates": 100 * clients,
        "stop_at_target": True,
    }


def _to_the_end(clients: int, devices: str, partition: str, time: float) -> dict[str, Any]:
    """All methods have the same virtual time, and nobody stops at the target."""
    return {
        **_world(clients, devices, partition),
        "time": time,
        "updates": None,
        "stop_at_target": False,
        "eval_every": clients,
    }


QUICK = {"data": "digits", "model": "mlp", "steps": 20, "batch_size": 16, "test_share": 0.2, "target": 0.85}

SET_UP = (
    "As in the paper: time per step equal for all, normal (deviation 0.3 of the mean) or exponential, and again normal "
    "(0.05) in every round; 200 local steps per update (100 with 20 clients), FedCompass between a fifth of that and "
    "that; batch 64, Adam 0.003, the hyperparameters of the paper's Table 9 (FedAT's proximal term, 0.4, is FedAT's "
    "own). The unit of time is the mean time of a step: ratios do not depend on it. FedAsync mixes models, as its own "
    "paper has it; the paper's Table 3 says that its FedAsync is FedCompass with Q_min = Q_max, which adds deltas."
)
CUT = (
    "Not as in the paper: LeNet-5 in place of a CNN with 13 times as many parameters, which is in fedcompass-cnn; "
    "accuracy is the mean over clients on their own test data (a tenth of each client's), evaluated after every update"
)
ENDS = (
    "The target is 90 %, and who has not reached it after 5,000 s or 100 updates per client has not reached it. Runs "
    "end at the target, so that nothing can be said of clients better or worse off than alone: see fedcompass-accuracy."
)
TO_TARGET = f"{CUT}. {ENDS}"


def _for_a_time(seconds: int) -> str:
    return f"{CUT.removesuffix(', evaluated after every update')}; every run lasts {seconds:,} s."


# The methods with the hyperparameters of Table 9, and the paper's Table 1 (MNIST; None for its "-").


def _methods(clients: int) -> dict[str, dict[str, Any]]:
    return {
        ALONE: {"strategy": ALONE},
        "fedavg": {"strategy": "fedavg"},
        "fedavgm": {"strategy": "fedavgm", "parameters": {"server_momentum": 0.9}},
        "fedasync": {"strategy": "fedasync", "parameters": {"mixing": 0.9, "staleness": "polynomial:0.5"}},
        "fedbuff": {"strategy": "fedbuff", "parameters": {"buffer_size": BUFFER[clients], "server_lr": 0.9}},
        "fedat": {"strategy": "fedat"},
        "fedcompass": {"strategy": "fedcompass"},
        "fedcompass+m": {"strategy": "fedcompass+m"},
        "fedcompass+n": {"strategy": "fedcompass+n"},
    }


Published = Mapping[str, Sequence[float | None]]
"""By row, and within a row by 5, 10, 20 clients and within those by homogeneous, normal, exponential."""
TABLE1: dict[str, Published] = {
    "class": {
        "fedavg": (1.35, 2.82, 4.32, 1.25, 2.10, 5.01, 1.44, 4.20, 9.03),
        "fedavgm": (1.27, 2.75, 4.23, 1.50, 2.51, 6.01, 2.20, 5.36, 13.73),
        "fedasync": (2.15, 2.34, 2.35, None, 2.17, 1.32, None, 4.44, 1.32),
        "fedbuff": (1.30, 1.57, 1.81, 1.58, 1.39, 1.43, 1.37, 1.18, 1.39),
        "fedat": (1.36, 2.16, 3.07, 1.13, 1.77, 2.46, 0.97, 1.58, 4.32),
        "fedcompass": (1.00,) * 9,
        "fedcompass+m": (1.10, 1.19, 0.81, 1.18, 0.99, 0.81, 1.10, 1.09, 1.08),
        "fedcompass+n": (0.89, 1.24, 0.94, 1.44, 1.28, 0.92, 0.94, 1.01, 1.09),
    },
    "Dirichlet": {
        "fedavg": (0.91, 1.85, 4.90, 1.18, 2.44, 5.68, 1.14, 2.48, 5.94),
        "fedavgm": (0.91, 1.85, 4.89, 1.22, 2.45, 5.83, 1.21, 2.70, 6.12),
        "fedasync": (1.78, 1.68, 2.01, None, 2.28, 1.29, None, None, 1.76),
        "fedbuff": (1.23, 1.52, 1.86, 1.81, 1.51, 1.49, 2.77, 1.22, 1.40),
        "fedat": (1.29, 1.97, 2.08, 1.08, 1.70, 2.44, 1.02, 1.83, 2.83),
        "fedcompass": (1.00,) * 9,
        "fedcompass+m": (0.72, 0.92, 0.95, 0.93, 0.91, 0.88, 0.87, 1.31, 0.81),
        "fedcompass+n": (0.92, 1.55, 1.26, 0.99, 1.12, 0.95, 0.93, 0.90, 1.08),
    },
}
TABLE3: Published = {  # MNIST, dual Dirichlet
    "1/Q = 0.05": (0.89, 1.01, 0.85, 0.96, 0.97, 0.82, 1.00, 1.02, 0.96),
    "1/Q = 0.1": (0.91, 1.05, 0.92, 0.96, 0.95, 0.85, 0.97, 1.02, 0.96),
    "1/Q = 0.2": (1.00,) * 9,
    "1/Q = 0.4": (1.02, 1.03, 1.70, 1.04, 1.05, 1.28, 1.00, 1.14, 1.25),
    "1/Q = 0.6": (1.04, 1.01, 1.83, 1.00, 1.01, 1.19, 0.92, 1.11, 1.16),
    "1/Q = 0.8": (1.04, 1.13, 1.58, 0.91, 1.25, 1.22, 0.86, 1.22, 1.21),
    "1/Q = 1": (1.78, 1.68, 2.01, None, 2.28, 1.29, None, None, 1.76),
}

TIME = Column("time_to_target", "time to target", digits=0, published=False, missing="not reached")
RELATIVE = Column("time_to_target", "time / FedCompass's", relative=True, missing="not reached")
IDLE = Column("idle_share", "idle %", scale=100.0, digits=1)
STALENESS = Column("mean_staleness", "staleness")
COLUMNS = (TIME, RELATIVE, IDLE, STALENESS)
KEPT = (*LENGTH, Column("accuracy", "accuracy %", scale=100.0))
SEEDS, FIRST_SEED = 10, 30
"""As many as the paper has."""


def _heading(clients: int, devices: str) -> str:
    return f"{clients} clients, {devices}"


def _index(clients: int, devices: str) -> int:
    return len(DEVICES) * CLIENTS.index(clients) + list(DEVICES).index(devices)


def _table1(partition: str, clients: int, devices: str, notes: str = TO_TARGET, **more: Any) -> Table:
    paper, place = TABLE1[partition], _index(clients, devices)
    return Table(
        f"{partition.lower()}-{clients}-{devices}",
        f"MNIST, {partition} partition, {_heading(clients, devices)}",
        notes,
        {**_world(clients, devices, partition), **more},
        [
            Case(label, settings, {"time_to_target": paper[label][place]} if label in paper else {}, "fedcompass")
            for label, settings in _methods(clients).items()
        ],
        COLUMNS,
        KEPT,
        block=f"MNIST, {partition} partition",
        heading=_heading(clients, devices),
    )


def _ratios(clients: int, devices: str) -> list[Case]:
    """FedCompass with several Q_min for the one Q_max."""
    return [
        Case(
            label,
            {"strategy": "fedcompass", "parameters": _fewest(label, Q[clients])},
            {"time_to_target": paper[_index(clients, devices)]},
            "1/Q = 0.2",
        )
        for label, paper in TABLE3.items()
    ]


def _fewest(label: str, most: int) -> dict[str, int]:
    share = float(label.removeprefix("1/Q = "))
    return {} if share == 0.2 else {"q_min": round(share * most)}  # 0.2 is the default, and so a run of Table 1


table1 = Bench(
    name="fedcompass-table1",
    title="FedCompass, Table 1",
    notes=SET_UP,
    tables=[
        _table1(partition, clients, devices) for clients in CLIENTS for partition in PARTITIONS for devices in DEVICES
    ],
    quick=QUICK,
    quick_tables=len(DEVICES),
    overview=RELATIVE,
)
with_cnn = Bench(
    name="fedcompass-cnn",
    title="FedCompass, Table 1 with the paper's CNN",
    notes=SET_UP,
    tables=[
        _table1(
            partition,
            5,
            devices,
            f"The CNN of the paper (5x5 convolutions of 32 and 64, hidden layer of 512). {ENDS.replace('100', '40')}",
            model="cnn",
            updates=200,
            time=2_500.0,
            test_share=0.05,
        )
        for partition in PARTITIONS
        for devices in DEVICES
    ],
    quick=QUICK,
    quick_tables=len(DEVICES),
    overview=RELATIVE,
)

# Appendix F: the highest accuracy.

TOP = {  # Tables 14 and 15
    "class": {"fedasync": 92.53, "fedbuff": 94.69, "fedat": 92.36, "fedcompass": 95.54, "fedavg": 92.42},
    "Dirichlet": {"fedasync": 92.96, "fedbuff": 94.11, "fedat": 93.06, "fedcompass": 94.36, "fedavg": 93.08},
}


def _top(partition: str) -> Table:
    methods = {label: settings for label, settings in _methods(5).items() if label in (ALONE, *TOP[partition])}
    return Table(
        f"{partition.lower()}-5-normal",
        f"MNIST, {partition} partition, {_heading(5, 'normal')}",
        _for_a_time(3_000),
        _to_the_end(5, "normal", partition, 3_000.0),
        [
            Case(label, settings, {"best": TOP[partition][label]} if label != ALONE else {}, "fedcompass")
            for label, settings in methods.items()
        ],
        (BEST, Column("accuracy", "accuracy %", scale=100.0, published=False), OWN, *OFF, TIME, IDLE, STALENESS),
        LENGTH,
        block="The highest accuracy",
        heading=partition,
    )


accuracy = Bench(
    name="fedcompass-accuracy",
    title="FedCompass, Tables 14 and 15: the highest accuracy",
    notes=SET_UP,
    tables=[_top(partition) for partition in PARTITIONS],
    quick={**QUICK, "time": 1_000.0},
    quick_tables=1,
    overview=BEST,
)

OF_THE_DEFAULT = replace(RELATIVE, title="time / that of 1/Q = 0.2")

table3 = Bench(
    name="fedcompass-table3",
    title="FedCompass, Table 3",
    notes=f"{SET_UP} 1/Q is Q_min / Q_max.",
    tables=[
        Table(
            f"{clients}-{devices}",
            f"MNIST, Dirichlet partition, {_heading(clients, devices)}",
            TO_TARGET,
            _world(clients, devices, "Dirichlet"),
            [Case(ALONE, {"strategy": ALONE}), *_ratios(clients, devices)],
            (TIME, OF_THE_DEFAULT, IDLE, STALENESS),
            KEPT,
            block="MNIST, Dirichlet partition",
            heading=_heading(clients, devices),
        )
        for clients in CLIENTS
        for devices in DEVICES
    ],
    quick={**QUICK, "steps": Q[5]},
    quick_tables=len(DEVICES),
    overview=OF_THE_DEFAULT,
)

SPEED_CHANGE = str(Path(__file__).parent / "devices" / "speed-change.toml")


def _steady_and_changing() -> list[Case]:
    """Each method with steady devices and with changing ones; times are divided by those with steady ones."""
    methods = _methods(5)
    names = (ALONE, "fedavg", "fedbuff", "fedat", "fedcompass")
    return [
        case
        for name in names
        for case in (
            Case(f"{name}, steady", methods[name]),
            Case(f"{name}, changing", {**methods[name], "devices": SPEED_CHANGE}, base=f"{name}, steady"),
        )
    ]


speed_change = Bench(
    name="fedcompass-speed-change",
    title="FedCompass under sudden changes of speed",
    notes=(
        "Normal devices, steady or changing: two of five clients need five times as long from 600 s on (the mean step "
        "takes 1 s), two others a third from 1,800 s on, and at 3,000 s all are as they were. The paper's appendix G.2 "
        "asks the same question; its figures are not at hand. Better and worse off are compared with clients alone on "
        "steady devices."
    ),
    tables=[
        Table(
            "class-5",
            "MNIST, class partition, 5 clients",
            _for_a_time(4_500),
            _to_the_end(5, "normal", "class", 4_500.0),
            _steady_and_changing(),
            (
                BEST,
                Column("accuracy", "accuracy %", scale=100.0),
                OWN,
                *(replace(column, base=f"{ALONE}, steady") for column in OFF),
                TIME,
                Column("time_to_target", "time, changing / steady", relative=True),
                Column("updates", "updates", digits=0),
                IDLE,
                STALENESS,
            ),
        )
    ],
    quick={**QUICK, "steps": 100, "time": 4500.0},
)

for bench in (table1, with_cnn, accuracy, table3, speed_change):
    benches.add(bench.name, replace(bench, seeds=SEEDS, first_seed=FIRST_SEED))
