"""Validation rows come from train rows, and nobody trains on them."""

import numpy as np
import pytest

from polytempo import simulate
from polytempo.core.errors import UserError
from polytempo.sim.experiment import make_experiment
from polytempo.sim.world import make_world
from polytempo.world.federation import Federation

WORLD = {"clients": 5, "updates": 20, "partition": "iid", "engine": "eager"}


def federation(**settings: object) -> Federation:
    experiment = make_experiment(**{"strategy": "fedavg", "clients": 6, **settings})
    return make_world(experiment, experiment.make())[0].federation


@pytest.mark.parametrize("partition", ["iid", "dirichlet:0.1", "groups"])
def test_a_share_of_each_clients_train_rows_is_kept_and_its_test_rows_stay(partition: str) -> None:
    whole, kept = federation(partition=partition), federation(partition=partition, validation_share=0.25)
    for client in range(6):
        before, after = whole.client(client), kept.client(client)
        assert after.test.tolist() == before.test.tolist()
        assert sorted([*after.train, *after.validation]) == sorted(before.train)
        assert len(after.validation) == min(max(1, round(0.25 * len(before.train))), len(before.train) - 1)
        order = [row for row in before.train.tolist() if row in set(after.train.tolist())]
        assert after.train.tolist() == order


def test_the_seed_decides_which_rows() -> None:
    first, again, other = (federation(validation_share=0.2, seed=seed).client(0).validation for seed in (1, 1, 2))
    assert first.tolist() == again.tolist()
    assert first.tolist() != other.tolist()


def test_a_client_with_one_train_row_keeps_it() -> None:
    poor = federation(clients=800, partition="iid", min_samples=2, validation_share=0.9)
    sizes = np.diff(poor.train_off)
    assert sizes.min() == 1
    assert all(len(poor.client(client).train) >= 1 for client in range(800))


def test_who_takes_over_anothers_rows_takes_over_its_validation_rows() -> None:
    drift = ({"kind": "mixture", "at": 5.0},)
    whole = federation(partition="dirichlet:0.3", validation_share=0.2, drift=drift)
    first = [set(whole.client(client).validation.tolist()) for client in range(6)]
    moved = [whole.client(client, 1) for client in range(6)]
    assert all(set(one.validation.tolist()) in first for one in moved)
    assert not any(set(one.train.tolist()) & set(one.validation.tolist()) for one in moved)


def test_without_a_share_nothing_changes_and_no_run_says_that_it_had_none(tmp_path) -> None:  # type: ignore[no-untyped-def]
    none, zero = simulate("fedbuff", **WORLD), simulate("fedbuff", validation_share=0, **WORLD)
    assert none.digest == zero.digest
    assert "validation_share" not in zero.config
    assert zero.accuracy_validation is None
    simulate("fedbuff", out=tmp_path / "r", **WORLD)
    with pytest.raises(UserError, match=r"holds another run \(validation_share is None there, 0.2 here\)"):
        simulate("fedbuff", out=tmp_path / "r", validation_share=0.2, **WORLD)


def test_the_score_is_the_mean_over_clients_on_rows_that_nobody_trained_on(tmp_path) -> None:  # type: ignore[no-untyped-def]
    run = simulate("standalone", validation_share=0.3, out=tmp_path / "r", **WORLD)
    assert run.accuracy_validation is not None
    assert run.accuracy_validation != run.accuracy_used
    assert abs(run.accuracy_validation - run.accuracy_used) < 0.15  # both are of rows that nobody trained on
    with pytest.raises(UserError, match=r"validation_share is 0.3 there, None here"):
        simulate("standalone", out=tmp_path / "r", **WORLD)


def test_with_the_personal_rule_it_is_the_score_of_the_used_model() -> None:
    run = simulate("concerto", validation_share=0.3, **(WORLD | {"updates": 60}))
    assert run.accuracy_validation is not None
    assert 0 < run.accuracy_validation <= 1


def test_pools_that_clients_share_have_no_validation_rows() -> None:
    with pytest.raises(UserError, match="one client would train on another's validation rows"):
        federation(partition="rotations:2", data="digits", clients=2, validation_share=0.2)


@pytest.mark.parametrize("share", [-0.1, 1, "much"])
def test_a_share_is_from_0_to_below_1(share: object) -> None:
    with pytest.raises(UserError, match="validation_share"):
        make_experiment(strategy="fedavg", validation_share=share)
