"""What clipping and robust mixing are worth, and what they cost: methods under attack, as experiments. No paper's."""

from typing import Any

from polytempo.papers.bench import Bench, Case, Column, Table, benches
from polytempo.report.run import Run

WORLD: dict[str, Any] = {
    "data": "mnist",
    "model": "mlp",
    "clients": 30,
    "devices": "slow:0.3x5",
    "batch_size": 20,
    "steps": 30,
    "lr": 0.1,
    "updates": 450,
    "eval_every": 150,
}
PARTITIONS = {
    "iid": ("everybody has the same kind of data", "iid"),
    "dirichlet": ("everybody has other data, Dir(0.5)", "dirichlet:0.5"),
    "labels": ("everybody has two labels of ten", "labels:2"),
}
FAST = "sign-flip-5-fast"
ATTACKS: dict[str, tuple[str, str | None]] = {
    "clean": ("nobody attacks", None),
    "scaled": ("20 % send 10 x their delta", "scaled:0.2:10"),
    "sign-flip": ("20 % send - their delta", "sign-flip:0.2:1"),
    "sign-flip-5": ("20 % send - 5 x their delta", "sign-flip:0.2:5"),
    FAST: ("20 % send - 5 x their delta, ten times as fast", "sign-flip:0.2:5:10"),
}
METHODS = ("fedasync", "fedbuff", "fedavg", "casa")
DEFENCES: dict[str, dict[str, Any]] = {
    "": {},
    " + clip": {"clip": 2.0},
    " + clip + median": {"clip": 2.0, "robust": "median:10"},
    " + clip + trimmed": {"clip": 2.0, "robust": "trimmed:10:0.3"},
}
SET_UP = (
    "MNIST, an mlp (784-100-10), 30 clients of whom 30 % are slow by 5, 15 updates per client on average of 30 steps "
    "with batch 20 and learning rate 0.1. Attackers are 6 of the 30, drawn from the seed. Clip 2, median:10, "
    "trimmed:10:0.3. Where attackers are fast, runs end at the same virtual time instead; methods without a defence, "
    "which end in NaN there, and those in rounds, where nobody is faster, are left out. Accuracy is the mean over all "
    "clients' own test data, attackers' included, of the model that each is served."
)


def honest_accuracy(run: Run) -> float:
    """The mean over the clients that do not attack."""
    attackers = run.config["resolved"].get("attackers", ())
    served = run.evaluations[-1]["per_client"]
    honest = [accuracy for client, accuracy in enumerate(served) if client not in attackers]
    return float(sum(honest) / len(honest))


ACCURACY = Column("accuracy", "accuracy %", scale=100.0, digits=1)
COLUMNS = (
    ACCURACY,
    Column("accuracy_honest", "honest clients %", scale=100.0, digits=1, of=honest_accuracy),
    Column("clusters", "clusters", digits=1),
)


def _table(world: str, attack: str) -> Table:
    (told, partition), (title, words) = PARTITIONS[world], ATTACKS[attack]
    fast = attack == FAST
    cases = [
        Case(f"{method}{name}", {"strategy": method, **defence})
        for method in METHODS
        for name, defence in DEFENCES.items()
        if not fast or (name and method != "fedavg")
    ]
    return Table(
        f"{world}-{attack}",
        f"{told}, {title}",
        "",
        {**WORLD, "partition": partition, "attack": words} | ({"updates": None, "time": 600.0} if fast else {}),
        cases,
        COLUMNS,
        block=told[0].upper() + told[1:],
        heading=title,
    )


benches.add(
    "robust",
    Bench(
        "robust",
        "Robustness to valid-looking updates",
        SET_UP,
        [_table(world, attack) for world in PARTITIONS for attack in ATTACKS],
        {"data": "digits", "clients": 20, "batch_size": 10, "steps": 20, "updates": 300, "eval_every": 100},
        quick_tables=len(ATTACKS) - 1,
        overview=ACCURACY,
    ),
)
