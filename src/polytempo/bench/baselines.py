"""The methods that know no clusters, in the main comparison of CASA (Table 1)."""

from polytempo.bench.bench import Bench, Case, Figure, benches

baselines = benches.add(
    "baselines",
    Bench(
        name="baselines",
        title="CASA, Table 1, MNIST: the rows without clusters",
        notes=(
            "As in the paper: 100 clients in four label groups, 30 % slow by 5, batch 10, learning rate 0.01, FedAsync "
            "with mixing 0.3 and hinge staleness (a = 1, b = 4), FedBuff's buffer 10, FedProx's mu 0.05, target 95 %, "
            "equally many updates for every method. Not as in the paper: an mlp (784-100-10) in place of a CNN, one "
            "local epoch (the paper does not say), and 10,000 updates (100 synchronous rounds) instead of 50,000. The "
            "paper does not name its unit of time, so times to target are compared as multiples of FedAvg's."
        ),
        common={
            "data": "mnist",
            "clients": 100,
            "partition": "groups",
            "devices": "slow:0.3x5",
            "model": "mlp",
            "batch_size": 10,
            "lr": 0.01,
            "epochs": 1,
            "updates": 10_000,
            "target": 0.95,
            "eval_every": 200,
        },
        quick={"data": "digits", "clients": 20, "updates": 2_000, "lr": 0.05, "target": 0.9, "eval_every": 40},
        cases=(
            Case("standalone", {"strategy": "standalone"}, {"accuracy": 98.26, "time_to_target": 4.9}),
            Case("fedavg", {"strategy": "fedavg"}, {"accuracy": 97.92, "time_to_target": 80.24}),
            Case(
                "fedprox",
                {"strategy": "fedprox", "parameters": {"mu": 0.05}},
                {"accuracy": 97.31, "time_to_target": 104.68},
            ),
            Case(
                "fedasync",
                {"strategy": "fedasync", "parameters": {"mixing": 0.3, "staleness": "hinge:1:4"}},
                {"accuracy": 97.46, "time_to_target": 109.53},
            ),
            Case(
                "fedbuff",
                {"strategy": "fedbuff", "parameters": {"buffer_size": 10}},
                {"accuracy": 99.25, "time_to_target": 53.31},
            ),
        ),
        figures=(
            Figure("accuracy", "accuracy %", scale=100.0, digits=2),
            Figure("accuracy_trained", "own model %", scale=100.0, digits=2),
            Figure("accuracy_slowest_fifth", "slowest fifth %", scale=100.0, digits=2),
            Figure("time_to_target", "time to target s", digits=0, published=False),
            Figure("time_to_target", "time to target / FedAvg's", digits=2, relative_to="fedavg"),
        ),
    ),
)
