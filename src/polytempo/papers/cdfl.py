"""What CDFL's paper shows (Zhu and Li, section 5), as experiments."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from polytempo.papers.bench import Bench, Case, Column, Table, benches

# The world.

EXCHANGES = 25
"""Per client, on average."""


def world(clusters: int, **work: int) -> dict[str, Any]:
    """K rotations, 20 K clients, a new mixture after every exchange."""
    clients = 20 * clusters
    return {
        "data": "fashion-mnist",
        "partition": f"rotations:{clusters}",
        "clients": clients,
        "model": "mlp",
        "devices": "homogeneous",
        "ask": "think:600",
        "drift": ({"kind": "mixture", "after": 1, "every": 1},),
        "proxies": "500",
        "batch_size": 32,
        "lr": 0.05,
        "updates": EXCHANGES * clients,
        "eval_every": 5 * clients,
        **(work or {"steps": 40}),
    }


SIZES = (2, 3, 4, 6)
SET_UP = (
    "As in the paper: K rotations by 360/K degrees, 20 K clients, 500 to 2,000 samples of which 40 to 90 % are of one "
    "cluster, new data with another mixture after every exchange, 25 exchanges per client, beta0 0.025, a 10, rho 0.1, "
    "500 proxy samples per cluster. Ours, where the paper says nothing: an mlp (784-100-10), 40 local steps with "
    "batch 32 and learning rate 0.05, a fifth of a client's samples for its test, clients that ask 600 s after their "
    "last answer on average (exponential) and train in 40 s. All methods begin with the model that was warmed "
    "up on all proxy sets. Figures over exchanges are means over the last quarter of them."
)
QUICK = {"data": "digits", "clients": 20, "updates": 300, "eval_every": 100, "proxies": "70"}

# The methods.

CDFL, SOFT = "cdfl", "fedsoft-async"
METHODS: dict[str, dict[str, Any]] = {
    CDFL: {"strategy": CDFL},
    "cdfl, Algorithm 2's estimate": {"strategy": CDFL, "parameters": {"estimate": "paper"}},
    "cdfl, paper's settings": {"strategy": CDFL, "parameters": {"preset": "paper"}},
    SOFT: {"strategy": SOFT},
    "fedbuff": {"strategy": "fedbuff"},
    "ca2fl": {"strategy": "ca2fl"},
    "local": {"strategy": "standalone"},
}
TABLE1: dict[int, dict[str, tuple[float, ...]]] = {
    2: {CDFL: (83.4, 83.8), SOFT: (83.6, 83.3), "fedbuff": (78.4,), "ca2fl": (59.0,), "local": (78.1,)},
    3: {CDFL: (82.3, 83.5), SOFT: (81.8, 82.3), "fedbuff": (77.1,), "ca2fl": (59.2,), "local": (74.6,)},
    4: {CDFL: (80.0, 82.9), SOFT: (78.6, 80.0), "fedbuff": (75.8,), "ca2fl": (51.4,), "local": (69.4,)},
    6: {CDFL: (78.8, 81.8), SOFT: (76.1, 76.9), "fedbuff": (75.0,), "ca2fl": (50.7,), "local": (69.7,)},
}
"""Client and cluster accuracy in percent."""

CLIENT = Column("accuracy_after", "client %", scale=100.0, digits=1)
CLUSTER = Column("cluster_accuracy", "cluster %", scale=100.0, digits=1)
OWN = Column("accuracy_before", "client before %", scale=100.0, digits=1, published=False)
KL = Column("mixture_kl", "KL", digits=3, published=False)
UNIFORM = Column("mixture_kl_uniform", "KL of the uniform mixture", digits=3, published=False)
BYTES = Column("bytes_per_exchange", "down per exchange MB", scale=1e-6, digits=3, published=False)


def _table(clusters: int, labels: Sequence[str], columns: Sequence[Column], base: str | None = None) -> Table:
    published = TABLE1[clusters] if CLIENT in columns else {}
    names = ("accuracy_after", "cluster_accuracy")
    return Table(
        f"fashion-{clusters}",
        f"Fashion-MNIST, {clusters} rotations",
        "",
        world(clusters),
        [
            Case(label, METHODS[label], dict(zip(names, published.get(label, ()), strict=False)), base)
            for label in labels
        ],
        columns,
        block="Client accuracy after the exchange" if CLIENT in columns else "KL(true mixture || estimate)",
        heading=f"{clusters} clusters",
    )


def _add(name: str, title: str, tables: Sequence[Table], quick: Mapping[str, Any], overview: Column | None) -> None:
    benches.add(name, Bench(name, f"CDFL, {title}", SET_UP, tables, quick, overview=overview))


TABLE1_COLUMNS = (CLIENT, CLUSTER, OWN, KL, UNIFORM)


LONGER = replace(
    _table(4, list(METHODS), TABLE1_COLUMNS),
    name="fashion-4-epochs",
    title="Fashion-MNIST, 4 rotations, five local epochs",
    notes="The paper does not say how long clients train, and that decides who wins: five local epochs, some 160 "
    "steps on average, in place of 40 steps.",
    settings=world(4, epochs=5),
    heading="4 clusters, 5 epochs",
)

_add(
    "cdfl-table1",
    "Table 1: client and cluster accuracy",
    [*(_table(clusters, list(METHODS), TABLE1_COLUMNS) for clusters in SIZES), LONGER],
    QUICK,
    CLIENT,
)

# Fig. 4 (b).

_add(
    "cdfl-kl",
    "Fig. 4 (b): how far the estimated mixture is from the true one",
    [_table(clusters, list(METHODS)[:4], (KL, UNIFORM)) for clusters in SIZES],
    QUICK,
    KL,
)

# Fig. 5.

_add(
    "cdfl-overhead",
    "Fig. 5: what clients download and compute, as multiples of CDFL's",
    [
        _table(
            clusters,
            (CDFL, SOFT),
            (
                Column("bytes_per_exchange", "down per exchange / CDFL's", relative=True),
                BYTES,
                Column("train_seconds", "clients' CPU time / CDFL's", relative=True, published=False),
                Column("bytes_up", "up / CDFL's", relative=True, published=False),
            ),
            base=CDFL,
        )
        for clusters in SIZES
    ],
    QUICK,
    None,
)

# Fig. 6.


def _proxy_table(name: str, title: str, notes: str, settings: Mapping[str, Any], sizes: Sequence[int]) -> Table:
    cases = [Case(f"{size} samples", {**METHODS[CDFL], "proxies": str(size)}) for size in sizes]
    return Table(name, title, notes, settings, cases, TABLE1_COLUMNS)


_add(
    "cdfl-proxy",
    "Fig. 6: the size of the proxy sets",
    [
        _proxy_table(
            "digits-4",
            "Digits, 4 rotations",
            "Not in the paper: 20 clients with 80 to 359 samples, 15 exchanges each.",
            {**world(4), **QUICK},
            (30, 60, 120, 240),
        ),
        _proxy_table(
            "fashion-4",
            "Fashion-MNIST, 4 rotations",
            "The first model is warmed up and the cluster models are begun on the proxy sets, so that larger ones also "
            "begin better models.",
            world(4),
            (500, 1000, 2000, 4000),
        ),
    ],
    {"updates": 200},
    None,
)
