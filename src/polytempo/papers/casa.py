"""What CASA's paper shows (Liu et al., KDD 2024, sections 5.2 and 5.3), as experiments."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from polytempo.papers.bench import Bench, Case, Column, Table, benches

# The worlds. A table takes one as it is, so that equal rows of different benchmarks are one run.

FEDERATION = {"clients": 100, "partition": "groups", "devices": "slow:0.3x5", "batch_size": 10, "lr": 0.01}
MNIST = {**FEDERATION, "data": "mnist", "target": 0.95}
CIFAR10 = {**FEDERATION, "data": "cifar10", "target": 0.8}

MNIST_MLP = {**MNIST, "model": "mlp", "epochs": 1, "updates": 6_000, "eval_every": 100}
MNIST_CNN = {**MNIST, "model": "cnn", "steps": 10, "updates": 2_000, "eval_every": 500}
CIFAR10_LENET = {**CIFAR10, "model": "lenet", "epochs": 1, "updates": 3_000, "eval_every": 100}

QUICK = {"data": "digits", "clients": 20, "updates": 1_000, "lr": 0.05, "target": 0.9, "eval_every": 50}


PAPERS_SETTINGS = (
    " Rows with the paper's settings (preset=paper) go by each pair's last cosine and ask nobody for an early report."
)


def _set_up(whose: str) -> str:
    return (
        "As in the paper: 100 clients in four label groups, 30 % slow by 5, batch 10, learning rate 0.01, target 95 % "
        "on MNIST and 80 % on CIFAR-10, equally many updates for every method. The paper does not name its unit of "
        f"time, so times to target are compared as multiples of {whose}. It does not say how the asynchronous forms of "
        "CFL, IFCA and ICFL decay stale updates: here by (1 + tau)^-0.5."
    )


SET_UP = _set_up("CASA's")


def _cut(world: Mapping[str, Any], model: str) -> str:
    work = f"{world['steps']} local steps" if "steps" in world else "one local epoch"
    return (
        f"Not as in the paper: {model}, {work} per update (the paper does not say how many) and {world['updates']:,} "
        f"updates ({world['updates'] // world['clients']} synchronous rounds) instead of 50,000."
    )


MLP_CUT = _cut(MNIST_MLP, "an mlp (784-100-10) in place of a CNN")
CNN_CUT = _cut(MNIST_CNN, "a CNN of our choice (5x5 convolutions of 32 and 64, hidden layer of 512)")
LENET_CUT = _cut(CIFAR10_LENET, "LeNet-5 (the paper: a CNN)")

# The methods, with the paper's hyperparameters (A.2.3).

METHODS: dict[str, dict[str, Any]] = {
    "standalone": {"strategy": "standalone"},
    "fedavg": {"strategy": "fedavg"},
    "fedprox": {"strategy": "fedprox", "parameters": {"mu": 0.05}},
    "cfl": {"strategy": "cfl"},
    "ifca k=4": {"strategy": "ifca", "parameters": {"k": 4}},
    "icfl (reconstructed)": {"strategy": "icfl"},
    "fedasync": {"strategy": "fedasync", "parameters": {"mixing": 0.3, "staleness": "hinge:1:4"}},
    "fedbuff": {"strategy": "fedbuff", "parameters": {"buffer_size": 10}},
    "cfl-async": {"strategy": "cfl-async"},
    "ifca-async k=4": {"strategy": "ifca-async", "parameters": {"k": 4}},
    "icfl-async (reconstructed)": {"strategy": "icfl-async"},
    "casa": {"strategy": "casa"},
    "casa, paper's settings": {"strategy": "casa", "parameters": {"preset": "paper"}},
    "casa+": {"strategy": "casa+"},
    "casa-c": {"strategy": "casa-c"},
    "casa-d": {"strategy": "casa-d"},
}
TABLE1 = [label for label in METHODS if label not in ("casa-c", "casa-d")]
CIFAR10_ROWS = ["standalone", "cfl", "fedasync", "fedbuff", "casa", "casa, paper's settings"]
CNN_ROWS = ["cfl", "fedasync", "casa", "casa, paper's settings"]
ABLATION = ["casa", "casa+", "casa-c", "casa-d"]

# The paper's accuracy in percent and time to target; None for its "/".

Published = Mapping[str, tuple[float, float | None]]
PAPER_MNIST: Published = {
    "standalone": (98.26, 4.9),
    "fedavg": (97.92, 80.24),
    "fedprox": (97.31, 104.68),
    "cfl": (99.42, 30.63),
    "ifca k=4": (99.50, 12.8),
    "icfl (reconstructed)": (98.68, 12.18),
    "fedasync": (97.46, 109.53),
    "fedbuff": (99.25, 53.31),
    "cfl-async": (99.23, 9.54),
    "ifca-async k=4": (98.88, 8.83),
    "icfl-async (reconstructed)": (98.82, 5.0),
    "casa": (99.52, 2.80),
    "casa, paper's settings": (99.52, 2.80),
    "casa+": (99.34, 4.80),
}
PAPER_CIFAR10: Published = {
    "standalone": (82.6, 35.2),
    "cfl": (90.50, 209.55),
    "fedasync": (67.66, None),
    "fedbuff": (61.11, None),
    "casa": (91.45, 23.4),
    "casa, paper's settings": (91.45, 23.4),
}
PAPER_GENERAL: Published = {  # HARBox; times to convergence
    "casa": (87.61, 346.6),
    "casa, paper's settings": (87.61, 346.6),
    "cfl": (83.27, 977.43),
    "fedavg": (83.18, 1115.93),
    "standalone": (70.47, 498.9),
}
PAPER_SEVERE: Published = {
    "casa": (87.81, 374.6),
    "casa, paper's settings": (87.81, 374.6),
    "cfl": (84.17, 1614.84),
    "fedavg": (81.15, 2015.19),
    "standalone": (70.43, 531.2),
}

ACCURACY = Column("accuracy", "accuracy %", scale=100.0)
TIME = Column("time_to_target", "time to target s", digits=0, published=False, missing="not reached")
TIMES_CASA = Column("time_to_target", "time / CASA's", relative=True)
CLUSTERING = (Column("purity", "purity"), Column("ari", "ARI"), Column("clusters", "clusters", digits=1))
COLUMNS = (
    ACCURACY,
    Column("accuracy_trained", "own model %", scale=100.0),
    Column("accuracy_slowest_fifth", "slowest fifth %", scale=100.0),
    TIME,
    TIMES_CASA,
    *CLUSTERING,
)


def _row(label: str, paper: Published, base: str = "casa") -> Case:
    return Case(label, METHODS[label], _figures(*paper[label]) if label in paper else {}, base)


def _figures(accuracy: float, time: float | None) -> dict[str, float | None]:
    return {"accuracy": accuracy, "time_to_target": time}


def _rows(labels: Iterable[str], paper: Published) -> list[Case]:
    return [_row(label, paper) for label in labels]


def _scenario(name: str, devices: str, paper: Published, base: str | None = None) -> list[Case]:
    """Table 2's rows of one scenario; times are divided by those of the other one."""
    rows = [_row(label, paper) for label in PAPER_GENERAL]
    return [
        replace(
            row,
            label=f"{row.label}, {name}",
            settings={**row.settings, "devices": devices},
            base=base and f"{row.label}, {base}",
        )
        for row in rows
    ]


table1 = Bench(
    name="casa-table1",
    title="CASA, Table 1",
    notes=SET_UP + PAPERS_SETTINGS,
    tables=(
        Table("mnist-mlp", "MNIST, mlp", MLP_CUT, MNIST_MLP, _rows(TABLE1, PAPER_MNIST), COLUMNS),
        Table("mnist-cnn", "MNIST, cnn", CNN_CUT, MNIST_CNN, _rows(CNN_ROWS, PAPER_MNIST), COLUMNS),
        Table("cifar10-lenet", "CIFAR-10", LENET_CUT, CIFAR10_LENET, _rows(CIFAR10_ROWS, PAPER_CIFAR10), COLUMNS),
    ),
    quick=QUICK,
)

table2 = Bench(
    name="casa-table2",
    title="CASA, Table 2",
    notes=(
        "Severe heterogeneity (30 % slow by 10) against the general case (time per step uniform between 1 and 5). The "
        "paper's data set, HARBox, is not at hand: ours is MNIST, so that only the ratio of times can be compared. The "
        "paper's times are those to convergence, ours those to 95 %."
        f"{PAPERS_SETTINGS}"
    ),
    tables=(
        Table(
            "mnist-mlp",
            "MNIST, mlp",
            _cut(MNIST_MLP, "MNIST and an mlp (784-100-10)"),
            MNIST_MLP,
            [
                *_scenario("general", "uniform:5", PAPER_GENERAL),
                *_scenario("severe", "slow:0.3x10", PAPER_SEVERE, base="general"),
            ],
            (ACCURACY, TIME, Column("time_to_target", "time, severe / general", relative=True), *CLUSTERING),
        ),
    ),
    quick=QUICK,
)

ablation = Bench(
    name="casa-ablation",
    title="CASA, Figure 8",
    notes=(
        f"{SET_UP} CASA-C is CASA without clustering, CASA-D is CASA without its two decays. The paper plots them; its "
        "figures for CASA-C and CASA-D on CIFAR-10 are the 23.62 and 34.23 points that its text names, taken from "
        "CASA's accuracy."
    ),
    tables=(
        Table("mnist-mlp", "MNIST, mlp", MLP_CUT, MNIST_MLP, _rows(ABLATION, PAPER_MNIST), COLUMNS),
        Table(
            "cifar10-lenet",
            "CIFAR-10",
            LENET_CUT,
            CIFAR10_LENET,
            [
                _row("casa", PAPER_CIFAR10),
                replace(_row("casa-c", {}), paper={"accuracy": 67.83}),
                replace(_row("casa-d", {}), paper={"accuracy": 57.22}),
            ],
            COLUMNS,
        ),
    ),
    quick=QUICK,
)

UNLIMITED = 1_000_000


def _budgets(paper: Mapping[str, float]) -> list[Case]:
    """CASA with 75 and 100 entries in its buffers, with the default of ten per client, and without a limit; with our
    settings and with the paper's."""
    given = {"M = 75": 75, "M = 100": 100, "M = 1,000 (default)": None, "M unlimited": UNLIMITED}
    return [
        Case(
            f"{label}{whose}",
            {"strategy": "casa", "parameters": parameters} if parameters else METHODS["casa"],
            {"accuracy": paper[label]} if label in paper else {},
            f"M = 1,000 (default){whose}",
        )
        for whose, preset in (("", {}), (", paper's settings", {"preset": "paper"}))
        for label, budget in given.items()
        for parameters in [preset if budget is None else {**preset, "budget": budget}]
    ]


BUFFER_COLUMNS = (ACCURACY, TIME, replace(TIMES_CASA, title="time / the default's"), *CLUSTERING)

buffer = Bench(
    name="casa-buffer",
    title="CASA, Figure 9a",
    notes=(
        f"{SET_UP} CASA with at most M entries in all buffers. The paper plots accuracy on CIFAR-10 and names "
        f"one figure, 91.21 % with M = 75.{PAPERS_SETTINGS}"
    ),
    tables=(
        Table("mnist-mlp", "MNIST, mlp", MLP_CUT, MNIST_MLP, _budgets({}), BUFFER_COLUMNS),
        Table("cifar10-lenet", "CIFAR-10", LENET_CUT, CIFAR10_LENET, _budgets({"M = 75": 91.21}), BUFFER_COLUMNS),
    ),
    quick={**QUICK, "clients": 100, "updates": 3_000, "eval_every": 200},
)


def _casa_plus(s0: float) -> dict[str, Any]:
    return {"strategy": "casa+", "parameters": {"sparsity": s0}}


sparsity = Bench(
    name="casa-sparsity",
    title="CASA, Figures 9b and 9c",
    notes=(
        f"{SET_UP} CASA+ with growing sparsity S0; S0 = 0 is CASA. The paper plots it without naming the data and says "
        "that S0 = 0.3 shortens the time to target 1.09 times, more sparsity 1.19 to 1.32 times, and that accuracy "
        "drops by 0.29 to 1.28 points."
    ),
    tables=(
        Table(
            "mnist-mlp",
            "MNIST, mlp",
            MLP_CUT,
            MNIST_MLP,
            [
                Case("S0 = 0", METHODS["casa"], {"time_to_target": 1.09}, "S0 = 0"),
                Case("S0 = 0.3", _casa_plus(0.3), {"time_to_target": 1.0}, "S0 = 0"),
                *(Case(f"S0 = {s0}", _casa_plus(s0), base="S0 = 0") for s0 in (0.6, 0.9, 1.2)),
            ],
            (
                ACCURACY,
                TIME,
                replace(TIMES_CASA, title="time / that of S0 = 0"),
                Column("bytes_up", "MB up", scale=1e-6, digits=0),
                *CLUSTERING,
            ),
        ),
    ),
    quick=QUICK,
)

baselines = Bench(
    name="baselines",
    title="CASA, Table 1, the rows without clusters",
    notes=_set_up("FedAvg's"),
    tables=(
        Table(
            "mnist-mlp",
            "MNIST, mlp",
            MLP_CUT,
            MNIST_MLP,
            [
                _row(label, PAPER_MNIST, base="fedavg")
                for label in ("standalone", "fedavg", "fedprox", "fedasync", "fedbuff")
            ],
            (*COLUMNS[:4], replace(TIMES_CASA, title="time / FedAvg's")),
        ),
    ),
    quick=QUICK,
)

for bench in (baselines, table1, table2, ablation, buffer, sparsity):
    benches.add(bench.name, bench)
