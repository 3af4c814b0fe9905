"""Is one method with one setting good in every world? Concerto and its rivals in the worlds of five papers, smaller
than there. No paper's."""

from typing import Any

from polytempo.papers.bench import Bench, benches
from polytempo.papers.rivals import CHOOSING_SEED, FIRST_SEED, SET_UP, USED, rivals_table

SLOW: dict[str, Any] = {"devices": "slow:0.3x5"}
GROUPS = {
    **SLOW,
    "data": "mnist",
    "model": "mlp",
    "clients": 100,
    "partition": "groups",
    "test_share": 0.4,
    "updates": 3_000,
    "eval_every": 300,
}
PACE = {
    **SLOW,
    "participation": "k:10",
    "batch_size": 64,
    "epochs": 5,
    "lr": 0.01,
    "momentum": 0.9,
    "weight_decay": 1e-4,
}
HUNDRED = {**PACE, "model": "mlp", "clients": 100, "updates": 2_000, "eval_every": 200}
CIFAR10 = {**HUNDRED, "data": "cifar10", "model": "lenet", "test_share": 0.9, "eval_every": 500}
IID = {
    "data": "mnist",
    "model": "mlp",
    "clients": 50,
    "partition": "iid",
    "devices": "exponential",
    "test_share": 0.6,
    "lr": 0.05,
    "updates": 1_000,
    "eval_every": 100,
}
CLASSES = {
    "data": "mnist",
    "model": "mlp",
    "clients": 10,
    "partition": "class",
    "devices": "exponential",
    "steps": 200,
    "batch_size": 64,
    "optimizer": "adam",
    "lr": 0.003,
    "test_share": 0.1,
    "time": 2_000.0,
    "eval_every": 40,
}
MOVING = {
    **SLOW,
    "data": "mnist",
    "model": "mlp",
    "clients": 60,
    "partition": "groups",
    "batch_size": 10,
    "steps": 12,
    "test_share": 0.8,
    "lr": 0.05,
    "time": 700.0,
    "eval_every": 240,
    "drift": [{"kind": "mixture", "clients": 0.3, "at": 350.0}],
}
ROTATIONS = {
    "data": "fashion-mnist",
    "model": "mlp",
    "clients": 80,
    "partition": "rotations:4",
    "devices": "homogeneous",
    "ask": "think:600",
    "drift": [{"kind": "mixture", "after": 1, "every": 1}],
    "proxies": "500",
    "batch_size": 32,
    "steps": 40,
    "lr": 0.05,
    "updates": 2_000,
    "eval_every": 200,
}
SAME_TIME = "All methods have the same virtual time: those that wait for everybody have fewer updates."
ON_DIRICHLET = {"partition": "dirichlet:0.1"}

TABLES = [
    rivals_table("mnist-groups", "MNIST, four groups, lr 0.01", {**GROUPS, "lr": 0.01}),
    rivals_table("mnist-groups-fast", "MNIST, four groups, lr 0.05", {**GROUPS, "lr": 0.05}),
    rivals_table("mnist-dir", "MNIST, Dir(0.1)", {**HUNDRED, **ON_DIRICHLET, "data": "mnist", "test_share": 0.6}),
    rivals_table(
        "mnist-dir-scarce",
        "MNIST, Dir(0.1), scarce",
        {**HUNDRED, **ON_DIRICHLET, "data": "mnist", "test_share": 0.9},
    ),
    rivals_table(
        "fashion-labels-scarce",
        "Fashion-MNIST, two labels, scarce",
        {**HUNDRED, "data": "fashion-mnist", "partition": "labels:2", "test_share": 0.9},
    ),
    rivals_table("mnist-iid", "MNIST, iid, exponential speeds", IID),
    rivals_table("mnist-class", "MNIST, class partition, 10 clients, Adam", CLASSES, SAME_TIME),
    rivals_table("mnist-moving", "MNIST, four groups, 30 % of 60 clients move", MOVING, SAME_TIME),
    rivals_table(
        "fashion-rotations",
        "Fashion-MNIST, four rotations, mixtures change",
        ROTATIONS,
        "Every client's mixture of rotations changes after each of its updates. The server has 500 samples per "
        "rotation, on which the first model is trained for all methods.",
        more=("cdfl",),
    ),
    rivals_table("cifar10-dir-scarce", "CIFAR-10, Dir(0.1), scarce, lenet", {**CIFAR10, **ON_DIRICHLET}),
    rivals_table("cifar10-groups-scarce", "CIFAR-10, four groups, scarce, lenet", {**CIFAR10, "partition": "groups"}),
]
QUICK = {"data": "digits", "clients": 12, "steps": 10, "test_share": 0.3, "updates": 120, "eval_every": 30}

benches.add(
    "concerto",
    Bench(
        "concerto",
        "Concerto and its rivals",
        SET_UP,
        TABLES,
        QUICK,
        overview=USED,
        first_seed=FIRST_SEED,
        recorded=True,
        choosing_seed=CHOOSING_SEED,
    ),
)
