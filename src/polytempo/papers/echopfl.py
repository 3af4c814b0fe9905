"""What EchoPFL's paper shows (Li et al., sections 2.1 and 7.2 to 7.5), as experiments."""

from collections.abc import Mapping, Sequence
from typing import Any

from polytempo.papers.bench import Bench, Case, Column, Table, benches
from polytempo.report.facts.alone import share_better_off

# The worlds. A table takes one as it is, so that equal rows of different benchmarks are one run.

FEDERATION = {"clients": 60, "devices": "types", "batch_size": 10, "epochs": 1, "test_share": 0.8, "eval_every": 300}
MNIST = {**FEDERATION, "data": "mnist", "model": "mlp", "lr": 0.05, "time": 1_200.0, "target": 0.95}
CIFAR10 = {
    **FEDERATION,
    "data": "cifar10",
    "model": "lenet",
    "lr": 0.02,
    "time": 600.0,
    "target": 0.75,
    "eval_every": 600,
}
WORLDS: dict[str, tuple[str, dict[str, Any]]] = {
    "mnist-groups": ("MNIST, five groups of two labels", {**MNIST, "partition": "groups:5"}),
    "mnist-pairs": ("MNIST, two labels at random", {**MNIST, "partition": "labels:2", "target": 0.85}),
    "cifar10-groups": ("CIFAR-10, five groups of two labels", {**CIFAR10, "partition": "groups:5"}),
}
ON_DIGITS = {"data": "digits", "model": "mlp", "lr": 0.05}
QUICK = {
    **ON_DIGITS,
    "clients": 20,
    "partition": "groups:5",
    "time": 400.0,
    "eval_every": 100,
    "target": 0.9,
}
SET_UP = (
    "As in the paper: 20 % D1, 20 % D2, 20 % D3, 40 % D5, downlink ten times the uplink; two labels per client; C = 2, "
    "h_m = 2. Ours: 60 clients, the devices' speeds (`polytempo list device-types`), one local epoch with batch 10, a "
    "fifth of each client's samples for training (233 of MNIST, 200 of CIFAR-10), and a virtual time for all, five "
    "times as long for methods that wait for everybody; ClusterFL has four clusters, its default. Served: the model "
    "that a client would be sent; own: what it last trained."
)
NOTES = {
    "mnist": "MNIST, which is not in the paper, with an mlp (784-100-10).",
    "cifar10": "LeNet-5 (the paper: two convolutions and one full layer).",
}

# The methods.

ALONE = "standalone"
LITERAL = "echopfl, paper's settings"
METHODS: dict[str, dict[str, Any]] = {
    ALONE: {"strategy": ALONE},
    "fedavg": {"strategy": "fedavg"},
    "oort": {"strategy": "oort", "participation": "share:0.5"},
    "fedasync": {"strategy": "fedasync", "parameters": {"mixing": 0.3, "staleness": "hinge:1:4"}},
    "fedsea (reconstructed)": {"strategy": "fedsea"},
    "clusterfl (reconstructed)": {"strategy": "clusterfl"},
    "echopfl": {"strategy": "echopfl"},
    LITERAL: {"strategy": "echopfl", "parameters": {"preset": "paper"}},
    "echopfl, by loss": {"strategy": "echopfl", "parameters": {"assignment": "loss"}},
}

SYNCHRONOUS = ("fedavg", "oort", "clusterfl (reconstructed)")
VARIANTS = ("echopfl, by loss",)
ROUND = 60


def _in_world(label: str, case: Mapping[str, Any], world: Mapping[str, Any]) -> dict[str, Any]:
    """A synchronous method is given five times as long, and is evaluated after as many updates as clients."""
    more = {"time": 5 * world["time"], "eval_every": ROUND} if label in SYNCHRONOUS else {}
    return {**case, **more}


SERVED = Column("accuracy", "served %", scale=100.0, digits=1)
SLOWEST = Column("accuracy_slowest_device", "slowest device %", scale=100.0, digits=1)
FASTEST = Column("accuracy_fastest_device", "fastest device %", scale=100.0, digits=1)
OWN = Column("accuracy_trained", "own model %", scale=100.0, digits=1, published=False)
BETTER_OFF = Column("better_off", "better off than alone %", scale=100.0, digits=0, compare=share_better_off)
TO_TARGET = Column("time_to_target", "time to target s", digits=0, published=False, missing="not reached")
TIME = Column("virtual_time", "virtual time s", digits=0)
UPDATES = Column("updates", "updates", digits=0)
MB_UP = Column("bytes_up", "MB up", scale=1e-6, digits=1)
MB_DOWN = Column("bytes_down", "MB down", scale=1e-6, digits=1)
PEAK_UP = Column("peak_up", "peak MB/min up", scale=1e-6, digits=1)
PEAK_DOWN = Column("peak_down", "peak MB/min down", scale=1e-6, digits=1)
PER_MINUTE = (
    Column("uploads_per_minute", "uploads per minute", digits=1),
    Column("downloads_per_minute", "downloads per minute", digits=1),
)

# Section 2.1, Table 1, and for EchoPFL section 7.4, Table 5: CIFAR-10.
TABLE1: dict[str, Mapping[str, float]] = {
    "fedavg": {"accuracy": 52.1, "accuracy_slowest_device": 30.5, "accuracy_fastest_device": 60.6},
    "fedasync": {"accuracy": 48.6, "accuracy_slowest_device": 22.1, "accuracy_fastest_device": 71.3},
    "clusterfl (reconstructed)": {
        "accuracy": 92.4,
        "accuracy_slowest_device": 89.6,
        "accuracy_fastest_device": 94.3,
    },
    "echopfl": {"accuracy": 90.1},
    LITERAL: {"accuracy": 90.1},
}


def _table(
    world: str,
    rows: Mapping[str, Mapping[str, Any]],
    columns: Sequence[Column],
    published: Mapping[str, Mapping[str, float]],
) -> Table:
    title, settings = WORLDS[world]
    notes = NOTES[world.partition("-")[0]]
    paper = published if world.startswith("cifar10") else {}
    cases = [
        Case(label, _in_world(label, case, settings), paper.get(label, {}), ALONE)
        for label, case in {ALONE: METHODS[ALONE], **rows}.items()
    ]
    return Table(world, title, notes, settings, cases, columns, block="Served accuracy", heading=title)


def add_bench(name: str, title: str, notes: str, tables: Sequence[Table], quick: Mapping[str, Any]) -> None:
    bench = Bench(f"echopfl-{name}", f"EchoPFL, {title}", notes, tables, quick, overview=SERVED)
    benches.add(bench.name, bench)


IN_THE_PAPER = {label: case for label, case in METHODS.items() if label not in VARIANTS}
TRADE_OFF = (SERVED, SLOWEST, FASTEST, OWN, BETTER_OFF, TO_TARGET, TIME, UPDATES, MB_UP, MB_DOWN, PEAK_UP, PEAK_DOWN)
add_bench(
    "tradeoff",
    "Table 1 and Fig. 8: accuracy against training time",
    SET_UP,
    [
        _table("mnist-groups", METHODS, TRADE_OFF, TABLE1),
        _table("mnist-pairs", METHODS, TRADE_OFF, TABLE1),
        _table("cifar10-groups", IN_THE_PAPER, TRADE_OFF, TABLE1),
    ],
    QUICK,
)

# Section 7.3, Table 4: five clients. The files in experiments/ say the same.

ALIKE = "composition:0-9/0-9/0-9/0-9/0-9"
UNLIKE = "composition:0-3/0-3/0-1/0-1/0*1,1*3"
SCENARIO = {
    "data": "cifar10",
    "model": "lenet",
    "test_share": 0.2,
    "batch_size": 10,
    "steps": 200,
    "lr": 0.02,
    "time": 2_000.0,
    "eval_every": 10,
}
SCENARIOS: dict[str, tuple[str, dict[str, Any]]] = {
    "a": ("A: alike in data and in devices", {**SCENARIO, "partition": ALIKE, "devices": "types:D1*5"}),
    "b": ("B: unlike in data", {**SCENARIO, "partition": UNLIKE, "devices": "types:D1*5"}),
    "c": ("C: unlike in devices", {**SCENARIO, "partition": ALIKE, "devices": "types:D1*2,D2*2,D4"}),
    "d": ("D: unlike in data and in devices", {**SCENARIO, "partition": UNLIKE, "devices": "types:D1*2,D2*2,D4"}),
}
IN_SCENARIOS = (ALONE, "fedavg", "fedasync", "clusterfl (reconstructed)", "echopfl", LITERAL)


def _in_scenario(label: str) -> dict[str, Any]:
    more = {"parameters": {"k": 2}} if label.startswith("clusterfl") else {}  # of five clients
    return {**METHODS[label], **more}


add_bench(
    "devices",
    "Table 4 and Fig. 13: four scenarios of five clients",
    "As in the paper: the clients' data and devices, CIFAR-10. Ours: LeNet-5, 200 local steps with batch 10, 2,000 s "
    "of virtual time for everybody. The paper shows these results only as bars.",
    [
        Table(
            f"scenario-{name}",
            title,
            "",
            settings,
            [Case(label, _in_scenario(label), base=ALONE) for label in IN_SCENARIOS],
            (SERVED, SLOWEST, FASTEST, OWN, BETTER_OFF, UPDATES),
            block="Served accuracy",
            heading=title,
        )
        for name, (title, settings) in SCENARIOS.items()
    ],
    {**ON_DIGITS, "steps": 20, "time": 400.0},
)

# Section 7.2.2: one D1, two D2, two D4, until the target.

FIVE_DEVICES = {
    **SCENARIO,
    "partition": "composition:0-1/0-1/2-3/0-1/2-3",
    "devices": "types:D1,D2*2,D4*2",
    "steps": 50,
    "time": 2_000.0,
    "eval_every": 10,
    "target": 0.6,
    "stop_at_target": True,
}
# Table 3 gives uploads per minute and minutes until convergence.
TABLE3: dict[str, Mapping[str, float]] = {
    "fedavg": {"uploads_per_minute": 29.22, "time_to_target": 398.0},
    "fedasync": {"uploads_per_minute": 64.0, "time_to_target": 102.0},
    "echopfl": {"uploads_per_minute": 61.8, "time_to_target": 81.0},
    LITERAL: {"uploads_per_minute": 61.8, "time_to_target": 81.0},
}
TO_TARGET_RATIO = Column("time_to_target", "time to target / FedAvg's", relative=True)
COMMUNICATION = (TO_TARGET, TO_TARGET_RATIO, *PER_MINUTE, MB_UP, MB_DOWN, PEAK_UP, PEAK_DOWN, SERVED)
COMMUNICATING = ("fedavg", "oort", "fedasync", "fedsea (reconstructed)", "echopfl", LITERAL)
NO_BROADCAST = {"strategy": "echopfl", "parameters": {"broadcast": "never"}}
add_bench(
    "communication",
    "Table 3 and Figs. 9 and 10: communication",
    "Per minute of virtual time; a peak is the busiest whole minute.",
    [
        Table(
            "five-devices",
            "CIFAR-10, one D1, two D2, two D4",
            "As in the paper: the devices; until the target is reached (the paper: until convergence, times in "
            "minutes). Ours: labels 0 and 1 at three clients, 2 and 3 at two, LeNet-5, 50 local steps with batch 10.",
            FIVE_DEVICES,
            [Case(label, METHODS[label], TABLE3.get(label, {}), "fedavg") for label in COMMUNICATING]
            + [Case("echopfl, no broadcast", NO_BROADCAST, base="fedavg")],
            COMMUNICATION,
            block="Served accuracy",
            heading="five devices",
        ),
        *(
            Table(
                f"{world}-traffic",
                WORLDS[world][0],
                f"{SET_UP} {NOTES[world.partition('-')[0]]}",
                WORLDS[world][1],
                [
                    Case(label, _in_world(label, METHODS[label], WORLDS[world][1]), base="fedavg")
                    for label in (*COMMUNICATING, "clusterfl (reconstructed)")
                ]
                + [Case("echopfl, no broadcast", NO_BROADCAST, base="fedavg")],
                COMMUNICATION,
                block="Served accuracy",
                heading=WORLDS[world][0],
            )
            for world in ("mnist-groups", "cifar10-groups")
        ),
    ],
    {**ON_DIGITS, "time": 300.0, "target": 0.9, "stop_at_target": False},
)

# Section 7.4.


def echopfl(**parameters: Any) -> dict[str, Any]:
    return {"strategy": "echopfl", "parameters": parameters}


ABLATION: dict[str, dict[str, Any]] = {
    "echopfl": METHODS["echopfl"],
    "no clustering": echopfl(first_clusters=1, refine_every=0),
    "no refinement": echopfl(refine_every=0),
    "no broadcast": NO_BROADCAST,
    "no clustering, no broadcast": echopfl(first_clusters=1, refine_every=0, broadcast="never"),
    "broadcast by Eq. 4": echopfl(broadcast="eq4"),
    "broadcast by the RNN": echopfl(broadcast="rnn"),
    "broadcast always": echopfl(broadcast="always"),
    "refresh by continuing": echopfl(refresh="continue"),
    "assignment by L1": echopfl(assignment="l1"),
    "assignment by cosine": echopfl(assignment="cosine"),
    "assignment by loss": METHODS["echopfl, by loss"],
    "an update counts as one member": echopfl(counts_as=1.0),
    "nobody is alike": echopfl(alike_below=0.0),
    "merging by mean": echopfl(merging="average"),
    "all layers": echopfl(last_layer=False),
    LITERAL: METHODS[LITERAL],
    f"{LITERAL}, no broadcast": echopfl(preset="paper", broadcast="never"),
}
IN_SHORT = ("echopfl", "no clustering", "no broadcast", "refresh by continuing", LITERAL)
TABLE5: dict[str, Mapping[str, float]] = {
    "echopfl": {"accuracy": 90.4},  # the paper's row by KL
    LITERAL: {"accuracy": 90.1},
    f"{LITERAL}, no broadcast": {"accuracy": 82.0},  # 8.09 points less
}
PARTS = (
    SERVED,
    SLOWEST,
    FASTEST,
    OWN,
    TO_TARGET,
    Column("multicasts", "broadcasts", digits=0),
    Column("downloads_ratio", "downloads / FedAsync's"),
    Column("mean_staleness", "staleness", digits=1),
    Column("clusters", "clusters", digits=1),
    Column("ari", "ARI"),
)
add_bench(
    "ablation",
    "Fig. 15 and Table 5: what each part contributes",
    SET_UP,
    [
        _table("mnist-groups", ABLATION, PARTS, TABLE5),
        _table("cifar10-groups", {label: ABLATION[label] for label in IN_SHORT}, PARTS, TABLE5),
    ],
    QUICK,
)
