"""One hostile client and the default defences of a service. What they do to accuracy is measured in
benchmarks/service/attack_poisoning.py."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from polytempo.serve.journal.settings import ServiceSettings
from polytempo.serve.server.operations import Operations
from support.serving import Hosted, hosted, join_all, restarted

HONEST, ATTACKER = range(9), 9
STEP = 0.1 * 6**0.5
"""How far an honest update leads."""
DEFAULTS = {name: ServiceSettings.model_fields[name].default for name in ("clip", "samples_cap")}


def honest_turn(served: Hosted) -> None:
    for client in HONEST:
        if served.task(client):
            served.push(client, 0.1)


def attack(served: Hosted) -> None:
    """An update just inside the norm bound that claims to come from 10^9 samples."""
    if served.task(ATTACKER):
        bound = Operations().bound(served.host.service.setting.initial_norm).distance
        head = served.push(ATTACKER, -0.99 * bound / 6**0.5, samples=10**9)
        assert head.WhichOneof("kind") != "refusal"


def model(served: Hosted) -> Tensor:
    return served.host.service.strategy.model_for(0).clone()


@pytest.mark.parametrize("strategy", ["fedavg", "fedasync"])
def test_one_update_that_claims_everything_moves_a_model_no_further_than_a_few_honest_ones(
    strategy: str, tmp_path: Path
) -> None:
    with hosted(tmp_path, strategy, **DEFAULTS) as served:
        join_all(served, 10)
        for _ in range(3):
            honest_turn(served)
            if served.task(ATTACKER):
                served.push(ATTACKER, 0.1)
        before = model(served)
        for turn in (attack, honest_turn, attack, honest_turn):
            turn(served)
        assert float(torch.dist(model(served), before)) < 10 * STEP
        assert restarted(served.copied(tmp_path / "crash"), served.settings) == served.digest()


def test_an_attack_in_every_round_does_not_reverse_the_training(tmp_path: Path) -> None:
    with hosted(tmp_path, "fedavg", **DEFAULTS) as served:
        join_all(served, 10)
        before = model(served)
        for _ in range(20):
            honest_turn(served)
            attack(served)
        assert float((model(served) - before).mean()) > 0
