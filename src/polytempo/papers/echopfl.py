"""What EchoPFL's paper shows (Li et al., sections 2.1 and 7.2 to 7.5), as experiments."""

from collections.abc import Mapping, Sequence
from typing import Any

from polytempo.papers.bench import Bench, Case, Column, Table, benches, until_flat
from polytempo.papers.figures import ALONE, BEST, CONVERGED, LENGTH, OFF, OWN, USED, bytes_to_converge

# The worlds. A table takes one as it is, so that equal rows of different benchmarks are one run.

FEDERATION = {"devices": "types", "batch_size": 10, "epochs": 1}
TWENTY = {
    **FEDERATION,
    "clients": 20,
    "data": "cifar10",
    "model": "lenet",
    "test_share": 0.5,
    "lr": 0.02,
    "target": 0.75,
    **until_flat(10_000, 100),
}
WORLDS: dict[str, tuple[str, dict[str, Any]]] = {
    "cifar10-groups": ("CIFAR-10, five groups of two labels", {**TWENTY, "partition": "groups:5"}),
    "cifar10-pairs": ("CIFAR-10, two labels at random", {**TWENTY, "partition": "labels:2"}),
    "uci-har": (
        "UCI-HAR, 30 wearers",
        {
            **FEDERATION,
            "data": "uci-har-inertial",
            "partition": "natural",
            "model": "har-mlp",
            "test_share": 0.3,
            "lr": 0.01,
            "momentum": 0.9,
            "target": 0.85,
            **until_flat(6_000, 60),
        },
    ),
    "mnist-groups": (
        "MNIST, five groups of two labels, 60 clients",
        {
            **FEDERATION,
            "clients": 60,
            "data": "mnist",
            "model": "mlp",
            "partition": "groups:5",
            "test_share": 0.8,
            "lr": 0.05,
            "target": 0.95,
            **until_flat(9_000, 90),
        },
    ),
}
ON_DIGITS = {"data": "digits", "model": "mlp", "lr": 0.05}
QUICK = {
    **ON_DIGITS,
    "clients": 20,
    "partition": "groups:5",
    "updates": 400,
    "eval_every": 100,
    "target": 0.9,
}
SET_UP = (
    "As in the paper: 20 % D1, 20 % D2, 20 % D3, 40 % D5, downlink ten times the uplink; two labels per client, or one "
    "client per wearer; C = 2, h_m = 2. Ours: 20 clients of CIFAR-10 who train on half of their samples (1,500), the "
    "devices' speeds (`polytempo list device-types`), one local epoch with batch 10; ClusterFL has four clusters, its "
    "default. A run ends when its used accuracy has not been better for a fifth of its length: 500 updates per client, "
    "200 for wearers, 150 on MNIST, and a fifth as many for methods that wait for everybody. `echopfl` has our default "
    "parameters, `echopfl, paper's settings` (preset=paper) the paper's rules and predictor. Served: the model that a "
    "client would be sent; own: what it last trained."
)
NOTES = {
    "mnist": "MNIST, which is not in the paper, with an mlp (784-100-10); 233 samples per client to train on.",
    "cifar10": "LeNet-5 (the paper: two convolutions and one full layer).",
    "uci": "Raw signals (the paper: features), an mlp with a hidden layer of 256.",
}

# The methods.

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
    "concerto": {"strategy": "concerto"},
}

SYNCHRONOUS = ("fedavg", "oort", "clusterfl (reconstructed)")
FEWER = 5
"""Updates of a method without rounds for one of a method that waits for everybody: fast devices hand in more."""


def _in_world(label: str, case: Mapping[str, Any], world: Mapping[str, Any]) -> dict[str, Any]:
    """Methods that wait for everybody end, and are evaluated, after fewer updates."""
    if label not in SYNCHRONOUS or "updates" not in world:
        return {**case}
    return {**case, **until_flat(world["updates"] // FEWER, world["eval_every"] // FEWER)}


SERVED = Column("accuracy", "served %", scale=100.0, digits=1)
SLOWEST = Column("accuracy_slowest_device", "slowest device %", scale=100.0, digits=1)
FASTEST = Column("accuracy_fastest_device", "fastest device %", scale=100.0, digits=1)
TO_TARGET = Column("time_to_target", "time to target s", digits=0, published=False, missing="not reached")
TIME, UPDATES = LENGTH
MB_UP = Column("bytes_up", "MB up", scale=1e-6, digits=1)
MB_DOWN = Column("bytes_down", "MB down", scale=1e-6, digits=1)
MB_TO_CONVERGE = Column("bytes_to_converge", "MB until converged", scale=1e-6, digits=1, of=bytes_to_converge)
PEAK_UP = Column("peak_up", "peak MB/min up", scale=1e-6, digits=1)
PEAK_DOWN = Column("peak_down", "peak MB/min down", scale=1e-6, digits=1)
PER_MINUTE = (
    Column("uploads_per_minute", "uploads per minute", digits=1),
    Column("downloads_per_minute", "downloads per minute", digits=1),
)
CLUSTERING = (Column("clusters", "clusters", digits=1), Column("ari", "ARI"))

# Section 2.1, Table 1, and for EchoPFL on CIFAR-10 section 7.4, Table 5.
Published = Mapping[str, Mapping[str, float]]
ACCURACIES = ("accuracy", "accuracy_slowest_device", "accuracy_fastest_device")


def _published(rows: Mapping[str, tuple[float, float, float]]) -> dict[str, Mapping[str, float]]:
    return {label: dict(zip(ACCURACIES, figures, strict=True)) for label, figures in rows.items()}


OF_CIFAR10 = _published(
    {
        "fedavg": (52.1, 30.5, 60.6),
        "fedasync": (48.6, 22.1, 71.3),
        "clusterfl (reconstructed)": (92.4, 89.6, 94.3),
    }
)
OF_ECHOPFL: dict[str, Mapping[str, float]] = {"echopfl": {"accuracy": 90.1}, LITERAL: {"accuracy": 90.1}}
TABLE1: dict[str, Published] = {
    "cifar10-groups": OF_CIFAR10 | OF_ECHOPFL,
    "cifar10-pairs": OF_CIFAR10 | OF_ECHOPFL,
    "uci-har": _published(
        {
            "fedavg": (89.7, 82.1, 94.6),
            "fedasync": (85.6, 65.4, 91.2),
            "clusterfl (reconstructed)": (99.6, 98.9, 100.0),
        }
    ),
}


def _table(world: str, rows: Mapping[str, Mapping[str, Any]], columns: Sequence[Column], published: Published) -> Table:
    title, settings = WORLDS[world]
    notes = NOTES[world.partition("-")[0]]
    cases = [
        Case(label, _in_world(label, case, settings), published.get(label, {}), ALONE)
        for label, case in {ALONE: METHODS[ALONE], **rows}.items()
    ]
    return Table(world, title, notes, settings, cases, columns, KEPT, "Served accuracy", title)


def add_bench(name: str, title: str, notes: str, tables: Sequence[Table], quick: Mapping[str, Any]) -> None:
    bench = Bench(f"echopfl-{name}", f"EchoPFL, {title}", notes, tables, quick, overview=SERVED, first_seed=4)
    benches.add(bench.name, bench)


TRADE_OFF = (
    *(SERVED, SLOWEST, FASTEST, OWN, USED, *OFF, TO_TARGET, CONVERGED),
    *(TIME, UPDATES, MB_UP, MB_DOWN, MB_TO_CONVERGE, PEAK_UP, PEAK_DOWN, *CLUSTERING),
)
KEPT = (BEST, *PER_MINUTE)
add_bench(
    "tradeoff",
    "Table 1 and Fig. 8: accuracy against training time",
    SET_UP,
    [_table(world, METHODS, TRADE_OFF, TABLE1.get(world, {})) for world in WORLDS],
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
    "time": 6_000.0,
    "eval_every": 10,
}
SCENARIOS: dict[str, tuple[str, dict[str, Any]]] = {
    "a": ("A: alike in data and in devices", {**SCENARIO, "partition": ALIKE, "devices": "types:D1*5"}),
    "b": ("B: unlike in data", {**SCENARIO, "partition": UNLIKE, "devices": "types:D1*5"}),
    "c": ("C: unlike in devices", {**SCENARIO, "partition": ALIKE, "devices": "types:D1*2,D2*2,D4"}),
    "d": ("D: unlike in data and in devices", {**SCENARIO, "partition": UNLIKE, "devices": "types:D1*2,D2*2,D4"}),
}
IN_SCENARIOS = (ALONE, "fedavg", "fedasync", "clusterfl (reconstructed)", "echopfl", LITERAL, "concerto")


def _in_scenario(label: str) -> dict[str, Any]:
    more = {"parameters": {"k": 2}} if label.startswith("clusterfl") else {}  # of five clients
    return {**METHODS[label], **more}


add_bench(
    "devices",
    "Table 4 and Fig. 13: four scenarios of five clients",
    "As in the paper: the clients' data and devices, CIFAR-10. Ours: LeNet-5, 200 local steps with batch 10, 6,000 s "
    "of virtual time for everybody. The paper shows these results only as bars.",
    [
        Table(
            f"scenario-{name}",
            title,
            "",
            settings,
            [Case(label, _in_scenario(label), base=ALONE) for label in IN_SCENARIOS],
            (SERVED, SLOWEST, FASTEST, OWN, USED, *OFF, CONVERGED, UPDATES),
            (BEST,),
            "Served accuracy",
            title,
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
    "time": 4_000.0,
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
COMMUNICATING = (ALONE, "fedavg", "oort", "fedasync", "fedsea (reconstructed)", "echopfl", LITERAL)
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
            "minutes). Ours: labels 0 and 1 at three clients, 2 and 3 at two, LeNet-5, 50 local steps with batch 10. "
            "Runs end at the target, so that nothing can be said of clients better or worse off than alone.",
            FIVE_DEVICES,
            [Case(label, METHODS[label], TABLE3.get(label, {}), "fedavg") for label in COMMUNICATING]
            + [Case("echopfl, no broadcast", NO_BROADCAST, base="fedavg")],
            COMMUNICATION,
            (TIME, UPDATES),
            "Served accuracy",
            "five devices",
        ),
    ],
    {**ON_DIGITS, "time": 300.0, "target": 0.9, "stop_at_target": False},
)

# Section 7.4.


def echopfl(**parameters: Any) -> dict[str, Any]:
    return {"strategy": "echopfl", "parameters": parameters}


NEITHER = f"{LITERAL}, no broadcast"
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
    **{f"C = {number}": echopfl(first_clusters=number) for number in (3, 4, 6)},
    **{f"h_m = {number}": echopfl(merge_above=number) for number in (1.0, 3.0, 4.0)},
    LITERAL: METHODS[LITERAL],
    NEITHER: echopfl(preset="paper", broadcast="never"),
}
IN_SHORT = ("echopfl", "no clustering", "no broadcast", "refresh by continuing", LITERAL, NEITHER)
TABLE5: Published = {
    "echopfl": {"accuracy": 90.4},  # the paper's row by KL
    LITERAL: {"accuracy": 90.1},
    NEITHER: {"accuracy": 82.0},  # 8.09 points less
}
PARTS = (
    SERVED,
    SLOWEST,
    FASTEST,
    OWN,
    *OFF,
    TO_TARGET,
    CONVERGED,
    Column("multicasts", "broadcasts", digits=0),
    Column("downloads_ratio", "downloads / FedAsync's"),
    Column("mean_staleness", "staleness", digits=1),
    *CLUSTERING,
)
SHORT = {label: ABLATION[label] for label in IN_SHORT}
add_bench(
    "ablation",
    "Figs. 12, 15 and 16 and Table 5: what each part contributes",
    SET_UP,
    [_table("mnist-groups", ABLATION, PARTS, {}), _table("cifar10-groups", SHORT, PARTS, TABLE5)],
    QUICK,
)
