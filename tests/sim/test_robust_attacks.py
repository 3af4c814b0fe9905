"""Clients that send something else than they trained."""

import pytest
import torch

from polytempo.core.errors import UserError
from polytempo.core.orders import Work
from polytempo.sim.experiment import make_experiment
from polytempo.sim.run import run_experiment
from polytempo.sim.uploads import Attack, Uploads, parse_attack
from polytempo.strategies import make_strategy
from polytempo.testing import simulator, update

START, TRAINED = torch.tensor([1.0, 1.0]), torch.tensor([1.5, 0.5])


def test_attacks_are_read_with_their_defaults():
    assert parse_attack("scaled:0.2") == Attack(0.2, 10.0)
    assert parse_attack("scaled:0.2:50") == Attack(0.2, 50.0)
    assert parse_attack("sign-flip:0.3") == Attack(0.3, -1.0)
    assert parse_attack("sign-flip:0.3:4") == Attack(0.3, -4.0)
    assert parse_attack("sign-flip:0.3:4:10") == Attack(0.3, -4.0, 10.0)


@pytest.mark.parametrize(
    "bad", ["scaled", "scaled:0", "scaled:1", "scaled:0.2:-3", "flip:0.2", "scaled:0.2:3:0.5", "scaled:0.2:3:4:5", "x"]
)
def test_an_attack_that_is_not_understood_is_refused(bad):
    with pytest.raises(UserError, match="Expected scaled:SHARE:FACTOR"):
        make_experiment(strategy="fedasync", attack=bad).check()


def test_attackers_multiply_their_delta_and_the_others_send_what_they_trained():
    uploads = Uploads(Attack(0.5, -2.0), clients=4, seed=0)
    assert len(uploads.attackers) == 2
    for client in range(4):
        trained = update(client, 3, START, TRAINED)
        arriving = uploads.sent(trained, count=0)
        if client in uploads.attackers:
            assert arriving.weights.tolist() == [0.0, 2.0]
        else:
            assert arriving is trained


def test_who_attacks_is_a_matter_of_the_seed():
    groups = {tuple(Attack(0.2, 10.0).attackers(50, seed)) for seed in range(4)}
    assert len(groups) == 4
    assert {len(group) for group in groups} == {10}


def test_an_attack_that_leads_to_infinity_is_refused_like_any_other_update():
    sim = simulator(make_strategy("fedasync", {}), clients=3, work=Work(steps=4, epochs=None, batch_size=4, lr=50.0))
    sim.uploads = Uploads(Attack(0.3, 3e38), clients=3, seed=0)
    sim.run()
    assert any(mark["kind"] == "refused" for mark in sim.history.marks)
    assert torch.isfinite(sim.strategy.model.weights).all()


def test_own_models_are_what_clients_trained_and_not_what_they_sent():
    def own_accuracy(attack):
        experiment = make_experiment(
            strategy="fedasync", clients=4, updates=4, eval_every=4, attack=attack, devices="homogeneous"
        )
        return run_experiment(experiment).result["accuracy_trained"]

    assert own_accuracy("sign-flip:0.5:100") == own_accuracy(None)


def test_the_record_of_a_run_names_its_attackers():
    experiment = make_experiment(strategy="fedasync", clients=10, updates=10, attack="scaled:0.2")
    assert len(run_experiment(experiment).config["resolved"]["attackers"]) == 2


def test_what_breaks_an_undefended_run_does_not_break_a_clipped_and_mixed_one():
    world = {"strategy": "fedasync", "clients": 20, "updates": 400, "partition": "iid", "attack": "sign-flip:0.2:10"}
    undefended = run_experiment(make_experiment(**world)).result["accuracy"]
    defended = run_experiment(make_experiment(**world, clip=2, robust="median")).result["accuracy"]
    assert undefended < 0.6
    assert defended > 0.85
