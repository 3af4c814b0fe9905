"""What CDFL's paper shows (Zhu and Li, section 5), as experiments."""

from collections.abc import Mapping, Sequence
from typing import Any

from polytempo.papers.bench import Bench, Case, Column, Table, benches
from polytempo.papers.figures import ALONE, OFF

# The worlds.


def _rotations(data: str, clusters: int, exchanges: int, **work: int) -> dict[str, Any]:
    """K rotations, 20 K clients, a new mixture after every exchange; so many exchanges per client on average."""
    clients = 20 * clusters
    return {
        "data": data,
        "partition": f"rotations:{clusters}",
        "clients": clients,
        "model": "lenet",
        "devices": "homogeneous",
        "ask": "think:600",
        "drift": ({"kind": "mixture", "after": 1, "every": 1},),
        "proxies": "500",
        "batch_size": 32,
        "lr": 0.05,
        "updates": exchanges * clients,
        "eval_every": 5 * clients,
        **(work or {"steps": 40}),
    }


FASHION, CIFAR100 = "fashion-mnist", "cifar100"
WORLDS: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"fashion-{k}": (f"Fashion-MNIST, {k} rotations", _rotations(FASHION, k, 25)) for k in (2, 3, 4, 6)},
    **{f"cifar100-{k}": (f"CIFAR-100, {k} rotations", _rotations(CIFAR100, k, 20)) for k in (2, 4)},
    "fashion-4-epochs": ("Fashion-MNIST, 4 rotations, five local epochs", _rotations(FASHION, 4, 25, epochs=5)),
}
SET_UP = (
    "As in the paper: K rotations by 360/K degrees, 20 K clients, 500 to 2,000 samples of which 40 to 90 % are of one "
    "cluster, new data with another mixture after every exchange, 25 exchanges per client (20 on CIFAR-100), beta0 "
    "0.025, a 10, rho 0.1, 500 proxy samples per cluster. Ours, where the paper says nothing: LeNet-5, 40 local steps "
    "with batch 32 and learning rate 0.05, a fifth of a client's samples for its test, clients that ask 600 s after "
    "their last answer on average (exponential) and train in 40 s. All methods begin with the model that was warmed up "
    "on all proxy sets. Figures over exchanges are means over the last quarter of them. `cdfl` has our default "
    "parameters: it estimates mixtures by direction; Algorithm 2's estimate and the paper's settings are rows of their "
    "own."
)
NOTES = {
    "fashion-4-epochs": "The paper does not say how long clients train: five local epochs, some 160 steps on average, "
    "in place of 40 steps."
}
QUICK = {"data": "digits", "model": "mlp", "clients": 20, "updates": 300, "eval_every": 100, "proxies": "70"}

# The methods.

CDFL, SOFT = "cdfl", "fedsoft-async"
METHODS: dict[str, dict[str, Any]] = {
    CDFL: {"strategy": CDFL},
    "cdfl, Algorithm 2's estimate": {"strategy": CDFL, "parameters": {"estimate": "paper"}},
    "cdfl, paper's settings": {"strategy": CDFL, "parameters": {"preset": "paper"}},
    SOFT: {"strategy": SOFT},
    "fedbuff": {"strategy": "fedbuff"},
    "ca2fl": {"strategy": "ca2fl"},
    ALONE: {"strategy": ALONE},
    "concerto": {"strategy": "concerto"},
}
TABLE1: dict[str, dict[str, tuple[float, ...]]] = {
    "fashion-2": {CDFL: (83.4, 83.8), SOFT: (83.6, 83.3), "fedbuff": (78.4,), "ca2fl": (59.0,), ALONE: (78.1,)},
    "fashion-3": {CDFL: (82.3, 83.5), SOFT: (81.8, 82.3), "fedbuff": (77.1,), "ca2fl": (59.2,), ALONE: (74.6,)},
    "fashion-4": {CDFL: (80.0, 82.9), SOFT: (78.6, 80.0), "fedbuff": (75.8,), "ca2fl": (51.4,), ALONE: (69.4,)},
    "fashion-6": {CDFL: (78.8, 81.8), SOFT: (76.1, 76.9), "fedbuff": (75.0,), "ca2fl": (50.7,), ALONE: (69.7,)},
    "cifar100-2": {CDFL: (39.2, 41.7), SOFT: (39.7, 41.6), "fedbuff": (33.8,), "ca2fl": (34.7,), ALONE: (28.0,)},
    "cifar100-4": {CDFL: (37.6, 43.2), SOFT: (36.1, 43.0), "fedbuff": (33.4,), "ca2fl": (33.6,), ALONE: (26.1,)},
}
"""Client and cluster accuracy in percent."""

CLIENT = Column("accuracy_after", "client %", scale=100.0, digits=1)
KEPT = (
    Column("accuracy", "served %", scale=100.0),
    Column("bytes_up", "MB up", scale=1e-6),
    Column("virtual_time", "virtual time s", digits=0),
)
COLUMNS = (
    CLIENT,
    Column("cluster_accuracy", "cluster %", scale=100.0, digits=1),
    Column("accuracy_before", "client before %", scale=100.0, digits=1, published=False),
    *OFF,
    Column("mixture_kl", "KL", digits=3, published=False),
    Column("mixture_kl_uniform", "KL of the uniform mixture", digits=3, published=False),
    Column("bytes_per_exchange", "down per exchange MB", scale=1e-6, digits=3, published=False),
    Column("train_seconds", "clients' CPU time / CDFL's", relative=True, published=False, base=CDFL, varies=True),
)


def _table(name: str, rows: Mapping[str, Mapping[str, Any]]) -> Table:
    (title, settings), published = WORLDS[name], TABLE1.get(name, {})
    figures = ("accuracy_after", "cluster_accuracy")
    return Table(
        name,
        title,
        NOTES.get(name, ""),
        settings,
        [
            Case(label, row, dict(zip(figures, published.get(label, ()), strict=False)), ALONE)
            for label, row in rows.items()
        ],
        [column for column in COLUMNS if column.base is None or column.base in rows],
        KEPT,
        block="Client accuracy after the exchange",
        heading=title,
    )


def _add(name: str, title: str, tables: Sequence[Table], quick: Mapping[str, Any]) -> None:
    bench = Bench(f"cdfl-{name}", f"CDFL, {title}", SET_UP, tables, quick, overview=CLIENT, first_seed=4)
    benches.add(bench.name, bench)


_add(
    "table1",
    "Table 1, Fig. 4 (b) and Fig. 5: accuracy, estimates, overhead",
    [_table(name, METHODS) for name in WORLDS],
    QUICK,
)

# Fig. 6.


def _proxies(*sizes: int) -> dict[str, dict[str, Any]]:
    return {f"{size} samples": {**METHODS[CDFL], "proxies": str(size)} for size in sizes}


_add(
    "proxy",
    "Fig. 6: the size of the proxy sets",
    [_table(name, {**_proxies(500, 1000, 2000, 4000), ALONE: METHODS[ALONE]}) for name in ("fashion-4", "cifar100-4")],
    QUICK,
)
