"""What PACE's paper shows (Liu et al., sections V-B to V-D), as experiments."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from polytempo.learn.models import Inputs, TextCNN
from polytempo.papers.bench import Bench, Case, Column, Table, benches
from polytempo.papers.figures import ALONE, BEST, CONVERGED, OFF, OWN, USED
from polytempo.report.run import Run

# The worlds. A table takes one as it is, so that equal rows of different benchmarks are one run.

FEDERATION = {
    "clients": 100,
    "participation": "k:10",
    "devices": "slow:0.3x5",
    "batch_size": 64,
    "epochs": 5,
    "lr": 0.01,
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "updates": 2_000,
    "eval_every": 100,
}
MNIST = {**FEDERATION, "data": "mnist", "model": "mlp"}
FASHION = {**FEDERATION, "data": "fashion-mnist", "model": "mlp"}
CIFAR10 = {**FEDERATION, "data": "cifar10", "model": "lenet"}
CIFAR100 = {**FEDERATION, "data": "cifar100", "model": "lenet"}
AG_NEWS = {**FEDERATION, "data": "ag-news", "model": "polytempo.papers.pace:narrow_textcnn"}
WISDM = {
    **{name: value for name, value in FEDERATION.items() if name != "clients"},
    "data": "wisdm-watch",
    "partition": "natural",
    "participation": "k:5",
    "model": "mlp",
    "lr": 0.001,
}
SCARCE = {"test_share": 0.9}

WORLDS: dict[str, tuple[str, dict[str, Any]]] = {
    "cifar10-dir": ("CIFAR-10, Dir(0.1)", {**CIFAR10, "partition": "dirichlet:0.1"}),
    "cifar10-labels": ("CIFAR-10, #C = 2", {**CIFAR10, "partition": "labels:2"}),
    "cifar100-dir": ("CIFAR-100, Dir(0.1)", {**CIFAR100, "partition": "dirichlet:0.1"}),
    "cifar100-labels": ("CIFAR-100, #C = 20", {**CIFAR100, "partition": "labels:20"}),
    "ag-news": ("AG News, Dir(0.3)", {**AG_NEWS, "partition": "dirichlet:0.3"}),
    "wisdm": ("WISDM watch, 50 wearers", WISDM),
    "mnist-dir": ("MNIST, Dir(0.1)", {**MNIST, "partition": "dirichlet:0.1"}),
    "mnist-labels": ("MNIST, #C = 2", {**MNIST, "partition": "labels:2"}),
    "mnist-dir-scarce": ("MNIST, Dir(0.1), scarce", {**MNIST, **SCARCE, "partition": "dirichlet:0.1"}),
    "mnist-groups-scarce": ("MNIST, four groups, scarce", {**MNIST, **SCARCE, "partition": "groups"}),
    "fashion-labels-scarce": ("Fashion-MNIST, #C = 2, scarce", {**FASHION, **SCARCE, "partition": "labels:2"}),
}
QUICK = {
    "data": "digits",
    "model": "mlp",
    "clients": 20,
    "participation": "k:10",
    "batch_size": 16,
    "updates": 400,
    "eval_every": 100,
}


def narrow_textcnn(inputs: Inputs) -> nn.Module:
    """``textcnn`` with 8 numbers per word in place of 64, so that four models are within the multicast budget."""
    assert inputs.vocabulary is not None
    return TextCNN(inputs.vocabulary, inputs.classes, width=8)


SET_UP = (
    "As in the paper: 100 clients, 10 in training at once (or per round), 30 % slow by 5, 2,000 updates (200 "
    "synchronous rounds), 5 local epochs, batch 64, SGD 0.01 with momentum 0.9 and weight decay 0.0001, the paper's "
    "hyperparameters. Served: the model that a client would be sent; own: what it last trained. Standalone and "
    "Concerto are not in the paper."
)
NOT_AS_IN_THE_PAPER = (
    "Not as in the paper: FedBuff's server learning rate is 1 (with the paper's 10, which multiplies the mean delta, "
    "it does not learn: 13 % on MNIST), FedAsync's mixing share, which the paper does not name, 0.6, and CA2FL, of "
    "which it shows nothing, has K = 10."
)
NOTES = {
    "cifar10": "LeNet-5 (the paper: the CNN of pFedGraph, also within the multicast budget).",
    "cifar100": "LeNet-5 (the paper: the CNN of pFedGraph).",
    "ag-news": "A TextCNN with words of 8 numbers, so that multicasts are within the budget; the 7,600 texts of the "
    "test file alone.",
    "wisdm": "Beside it stands the paper's HARBox, phones of 120 wearers: here 50, five in training at once.",
    "mnist": (
        "MNIST with an mlp (784-100-10) and the learning rate of the paper's CNNs. Beside it stands the paper's "
        "EMNIST, which is not at hand here: a column of the same kind, not of the same data."
    ),
    "fashion": "Fashion-MNIST, which is not in the paper, with an mlp (784-100-10).",
}


def _notes(name: str) -> str:
    scarce = (
        " Scarce: a tenth of each client's samples is for training (60 on average), nine tenths are for its test; the "
        "paper's figures are with all of them."
    )
    data = next(data for data in NOTES if name == data or name.startswith(f"{data}-"))
    return f"{NOT_AS_IN_THE_PAPER} {NOTES[data]}{scarce if name.endswith('scarce') else ''}"


# The methods with the hyperparameters of section V-A, and the paper's Tables II to IV and Fig. 5.

METHODS: dict[str, dict[str, Any]] = {
    ALONE: {"strategy": ALONE},
    "fedavg": {"strategy": "fedavg"},
    "fedprox": {"strategy": "fedprox", "parameters": {"mu": 0.5}},
    "fedasync": {"strategy": "fedasync", "parameters": {"staleness": "hinge:1:4"}},
    "fedbuff": {"strategy": "fedbuff"},
    "port": {"strategy": "port"},
    "fedac": {"strategy": "fedac"},
    "asafl (reconstructed)": {"strategy": "asafl"},
    "ca2fl": {"strategy": "ca2fl"},
    **{name: {"strategy": name} for name in ("fedamp", "pfedgraph", "fedsac")},
    **{name: {"strategy": name} for name in ("fedamp-async", "pfedgraph-async", "fedsac-async", "pace")},
    "concerto": {"strategy": "concerto"},
}

Accuracies = Mapping[str, float]
IN_ORDER = [label for label in METHODS if label not in (ALONE, "ca2fl", "concerto")]


def _accuracies(*accuracies: float) -> Accuracies:
    return dict(zip(IN_ORDER, accuracies, strict=True))


TABLE2: dict[str, Accuracies] = {
    "mnist-dir": _accuracies(  # EMNIST
        84.98, 84.43, 83.74, 84.47, 81.67, 84.65, 81.23, 76.17, 81.71, 81.71, 38.97, 42.98, 82.85, 90.75
    ),
    "mnist-labels": _accuracies(  # EMNIST, #C = 10 of 47
        82.38, 82.65, 80.62, 81.24, 68.43, 83.36, 80.71, 80.70, 85.32, 85.54, 16.77, 72.64, 86.59, 91.97
    ),
    "cifar10-dir": _accuracies(
        49.40, 51.07, 42.45, 47.83, 39.26, 52.81, 41.12, 69.53, 76.80, 76.54, 71.67, 16.70, 69.85, 81.65
    ),
    "cifar10-labels": _accuracies(
        45.32, 46.08, 40.76, 43.89, 32.48, 45.48, 42.81, 56.71, 77.43, 77.63, 50.33, 59.90, 68.89, 79.98
    ),
    "cifar100-dir": _accuracies(
        26.56, 26.55, 22.76, 23.16, 22.26, 24.09, 13.79, 18.29, 38.05, 38.48, 6.39, 3.91, 25.76, 41.11
    ),
    "cifar100-labels": _accuracies(
        23.77, 23.34, 20.12, 17.04, 17.43, 20.61, 10.14, 23.58, 22.82, 22.69, 1.07, 4.80, 12.19, 25.03
    ),
    "wisdm": _accuracies(  # HARBox
        74.76, 74.90, 71.28, 74.72, 69.85, 76.14, 71.93, 86.44, 85.52, 85.47, 85.70, 45.84, 80.26, 92.73
    ),
    "ag-news": _accuracies(
        72.27, 67.97, 74.20, 70.62, 64.90, 75.77, 61.56, 73.50, 75.85, 75.95, 71.60, 26.83, 67.49, 76.69
    ),
}
PLUGGED_IN = ("fedamp-async", "fedamp-pace", "fedsac-async", "fedsac-pace")
TABLE3: dict[str, Accuracies] = {
    "cifar10-dir": dict(zip(PLUGGED_IN, (71.67, 79.87, 69.85, 81.58), strict=True)),
    "cifar100-dir": dict(zip(PLUGGED_IN, (6.39, 37.21, 25.76, 40.97), strict=True)),
    "ag-news": dict(zip(PLUGGED_IN, (71.60, 77.39, 67.49, 76.87), strict=True)),
}
METRICS = {"cosine": "cosine", "inner product": "inner", "L1": "l1", "L2": "l2"}
TABLE4: dict[str, Accuracies] = {
    "mnist-dir": dict(zip(METRICS, (90.75, 90.78, 90.86, 90.83), strict=True)),
    "cifar10-dir": dict(zip(METRICS, (81.65, 82.61, 82.33, 82.40), strict=True)),
    "cifar100-dir": dict(zip(METRICS, (41.11, 41.58, 41.38, 41.40), strict=True)),
    "ag-news": dict(zip(METRICS, (76.69, 76.97, 76.92, 77.02), strict=True)),
}
ABLATION: dict[str, dict[str, Any]] = {
    "pfedgraph-async": METHODS["pfedgraph-async"],
    "+ buffer": {"strategy": "pace", "parameters": {"staleness": "constant", "budget": 0}},
    "+ multicast": {"strategy": "pace", "parameters": {"staleness": "constant"}},
    "+ decay = pace": METHODS["pace"],
}
FIGURE5: dict[str, Accuracies] = {"cifar10-dir": dict(zip(ABLATION, (16.70, 37.39, 53.32, 81.65), strict=True))}


def drop_from_best(run: Run) -> float:
    """How far the served accuracy ends below the best of its curve."""
    served = run.over_evaluations("accuracy")
    return float(served.max() - served[-1])


SERVED = Column("accuracy", "served %", scale=100.0)
COLUMNS = (
    SERVED,
    OWN,
    USED,
    *OFF,
    CONVERGED,
    Column("virtual_time", "virtual time s", digits=0),
    Column("mean_staleness", "staleness", digits=1),
    Column("downloads_ratio", "downloads / FedAsync's"),
)
KEPT = (BEST, Column("drop", "below its best, points", scale=100.0, of=drop_from_best))


def _table(name: str, rows: Mapping[str, Mapping[str, Any]], published: Mapping[str, Accuracies]) -> Table:
    """Standalone and these rows in one world, the paper's figures beside them."""
    title, settings = WORLDS[name]
    paper = published.get(name.removesuffix("-scarce"), {})
    cases = {ALONE: METHODS[ALONE], **rows}
    return Table(
        name,
        title,
        _notes(name),
        settings,
        [
            Case(label, case, {"accuracy": paper[label]} if label in paper else {}, ALONE)
            for label, case in cases.items()
        ],
        COLUMNS,
        KEPT,
        block="Served accuracy",
        heading=title,
    )


def _bench(
    name: str, title: str, rows: Mapping[str, Mapping[str, Any]], published: Mapping[str, Accuracies], worlds: list[str]
) -> None:
    tables = [_table(world, rows, published) for world in worlds]
    bench = Bench(
        f"pace-{name}", f"PACE, {title}", SET_UP, tables, QUICK, quick_tables=2, overview=SERVED, first_seed=4
    )
    benches.add(bench.name, bench)


FEW = ["cifar10-dir", "cifar100-dir", "ag-news", "mnist-dir-scarce"]


def _pace(**parameters: Any) -> dict[str, Any]:
    return {"strategy": "pace", "parameters": parameters} if parameters else METHODS["pace"]


_bench("table2", "Table II", METHODS, TABLE2, list(WORLDS))
_bench("table3", "Table III", {name: {"strategy": name} for name in PLUGGED_IN}, TABLE3, FEW)
_bench(
    "table4",
    "Table IV",
    {label: _pace(**({} if metric == "cosine" else {"metric": metric})) for label, metric in METRICS.items()},
    TABLE4,
    FEW,
)
_bench("ablation", "Fig. 5", ABLATION, FIGURE5, FEW)
_bench(
    "sensitivity",
    "Figs. 6 and 7: lambda and gamma",
    {
        "pace": METHODS["pace"],
        **{f"lambda = {value}": _pace(cosine=value) for value in (0.001, 0.5)},
        **{f"gamma = {value}": _pace(gamma=value) for value in (1.1, 2.1)},
    },
    {},
    ["cifar10-dir", "ag-news"],
)
