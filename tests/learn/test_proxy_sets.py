"""Proxy sets as the server computes with them: with real models."""

import numpy as np
import pytest
import torch

from polytempo.core.events import Update
from polytempo.core.orders import Work
from polytempo.learn.learner import Assignment, Learner, make_learner
from polytempo.learn.models import Inputs
from polytempo.learn.proxies import ProxySets
from polytempo.strategies import Setting, make_strategy
from polytempo.world.data import load_dataset
from polytempo.world.partitions import make_federation
from polytempo.world.proxies import proxies_of

WORK = Work(epochs=None, steps=30, batch_size=16, lr=0.1)
FEDERATION = make_federation(load_dataset("digits", None), "rotations:3", 6, seed=0, proxies=80)


def made() -> tuple[Learner, torch.Tensor, ProxySets]:
    learner, initial = make_learner("mlp", Inputs((1, 8, 8), 10, None), seed=0)
    data = proxies_of(FEDERATION)
    return learner, initial, ProxySets(learner, data.x, data.y, data.offsets, WORK, seed=0)


def test_the_losses_over_all_sets_are_those_of_each() -> None:
    learner, initial, proxies = made()
    assert proxies.clusters == 3
    assert proxies.losses(initial) == pytest.approx([proxies.loss(initial, k) for k in range(3)])
    rows = FEDERATION.clusters[1].proxy
    x, y = torch.from_numpy(FEDERATION.dataset.x), torch.from_numpy(FEDERATION.dataset.y[rows])
    assert proxies.loss(initial, 1) == pytest.approx(float(learner.scorer.losses(initial, x, y, rows).mean()))


def test_each_cluster_model_is_best_on_its_own_set() -> None:
    _, initial, proxies = made()
    warmed = proxies.warmed(initial, 5)
    assert proxies.losses(warmed).sum() < proxies.losses(initial).sum()
    losses = np.stack([proxies.losses(model) for model in proxies.specialised(warmed, 10)])
    assert losses.argmin(axis=1).tolist() == [0, 1, 2]
    assert losses.argmin(axis=0).tolist() == [0, 1, 2]


def test_training_on_proxy_sets_repeats_bit_for_bit_and_no_epochs_change_nothing() -> None:
    _, initial, proxies = made()
    assert torch.equal(proxies.warmed(initial, 3), made()[2].warmed(initial, 3))
    assert proxies.warmed(initial, 0) is initial


@pytest.mark.parametrize("dominant", [0, 1, 2])
def test_the_estimate_finds_the_cluster_that_a_client_has_most_of_in_a_trained_model(dominant: int) -> None:
    """A client trains the mean of the cluster models on planted shares of 70, 20 and 10 %."""
    learner, initial, proxies = made()
    server = make_strategy("cdfl", {})
    server.begin(Setting(proxies.warmed(initial, 5), learner.schema, WORK, objects={"proxies": proxies}))
    server.joined(0, 0.0)
    (order,) = server.ready(0, 0.0)
    counts = np.roll([140, 40, 20], dominant)
    images = FEDERATION.pools.train_images  # type: ignore[union-attr]
    rows = np.concatenate([k * images + np.arange(count) for k, count in enumerate(counts)])
    x, y = torch.from_numpy(FEDERATION.dataset.x), torch.from_numpy(FEDERATION.dataset.y)
    trained = learner.carry_out(Assignment(order, x, y, rows, 60, 0, 0)).update
    server.updated(Update(0, 0, order.weights, trained.weights, len(rows), 60), 1.0)
    assert np.argsort(server.mixture(0))[::-1].tolist() == np.argsort(counts)[::-1].tolist()
