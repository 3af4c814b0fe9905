"""Are wearers and patients better off than alone? All methods on data that real clients made. No paper's."""

from typing import Any

from polytempo.papers.bench import Bench, benches
from polytempo.papers.rivals import CHOOSING_SEED, FIRST_SEED, SET_UP, USED, rivals_table

BY_USER: dict[str, Any] = {"partition": "natural", "devices": "slow:0.3x5", "momentum": 0.9}
UCI = {
    **BY_USER,
    "data": "uci-har-inertial",
    "test_share": 0.3,
    "batch_size": 16,
    "lr": 0.01,
    "updates": 3_000,
    "eval_every": 150,
}
WISDM = {
    **BY_USER,
    "data": "wisdm-watch",
    "test_share": 0.3,
    "batch_size": 16,
    "lr": 0.02,
    "updates": 5_000,
    "eval_every": 250,
}
MIT_BIH = {
    **BY_USER,
    "data": "mit-bih",
    "test_share": 0.5,
    "batch_size": 32,
    "lr": 0.02,
    "steps": 30,
    "updates": 2_400,
    "eval_every": 120,
}
WORLDS: dict[str, tuple[str, dict[str, Any]]] = {
    "uci-har": ("UCI-HAR, 30 wearers, mlp", {**UCI, "model": "mlp"}),
    "wisdm": ("WISDM watch, 50 wearers, mlp", {**WISDM, "model": "mlp"}),
    "mit-bih": ("MIT-BIH, 48 records, mlp", {**MIT_BIH, "model": "mlp"}),
    "uci-har-cnn1d": ("UCI-HAR, 30 wearers, cnn1d", {**UCI, "model": "cnn1d", "updates": 1_500}),
    "mit-bih-cnn1d": ("MIT-BIH, 48 records, cnn1d", {**MIT_BIH, "model": "cnn1d", "updates": 1_200}),
}
QUICK = {
    "data": "digits",
    "model": "mlp",
    "partition": "dirichlet:0.3",
    "clients": 12,
    "steps": 10,
    "updates": 120,
    "eval_every": 30,
}

benches.add(
    "natural",
    Bench(
        "natural",
        "Data of real clients",
        f"{SET_UP} One client per wearer or record, of whom 30 % are slow by 5.",
        [rivals_table(name, title, settings) for name, (title, settings) in WORLDS.items()],
        QUICK,
        overview=USED,
        first_seed=FIRST_SEED,
        recorded=True,
        choosing_seed=CHOOSING_SEED,
    ),
)
