"""EchoPFL's assignments: four rules, one interface."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from polytempo.core.branch import Branch
from polytempo.strategies import Setting
from polytempo.strategies.parts.assignment import ASSIGNMENTS, Assignment
from polytempo.strategies.parts.clusters import Clusters
from polytempo.testing import update, vector
from polytempo_client.model.schema import Schema

LABELS = {0: np.array([0.9, 0.1]), 1: np.array([0.1, 0.9])}
NEAR_0 = {"soft-labels": [0.8, 0.2]}


class Server(NamedTuple):
    clusters: Clusters
    setting: Setting
    soft_labels: dict[int, np.ndarray]


class Assigning(NamedTuple):
    rule: Assignment
    server: Server

    def offered(self, client):
        return self.rule.offered(self.server, client)

    def cluster_for(self, handed_in, offered):
        return self.rule.cluster_for(self.server, handed_in, offered)


def assigning(rule, *models):
    """A rule over clusters with these models, of which the first two have a client each."""
    clusters = Clusters({number: Branch(model, 1) for number, model in enumerate(models)}, together=False)
    for client in range(2):
        clusters.join(client)
        clusters.assign(client, client)
    return Assigning(ASSIGNMENTS[rule], Server(clusters, Setting(vector(0, 0), Schema(("w",), ((2,),), 2)), LABELS))


def handed_in(client, *weights, chosen=None):
    return replace(update(client, 1, vector(0, 0), vector(*weights)), answers=NEAR_0, chosen=chosen)


@pytest.mark.parametrize("rule", list(ASSIGNMENTS))
def test_a_newcomer_goes_to_the_nearest_cluster(rule):
    rule = assigning(rule, vector(4, 0), vector(0, 4))
    assert rule.cluster_for(handed_in(7, 3, 1), (0,)) == 0


@pytest.mark.parametrize("rule", ["l1", "cosine", "loss"])
def test_on_a_tie_a_client_stays(rule):
    rule = assigning(rule, vector(4, 0), vector(4, 0))
    assert [rule.cluster_for(handed_in(client, 3, 1), (client,)) for client in (0, 1)] == [0, 1]


def test_by_kl_a_client_that_is_alone_is_compared_with_itself():
    rule = assigning("kl", vector(4, 0), vector(0, 4))
    assert rule.cluster_for(handed_in(1, 3, 1), (1,)) == 0  # it says that it is like client 0 now
    assert rule.cluster_for(replace(handed_in(1, 3, 1), answers={}), (1,)) == 1


@pytest.mark.parametrize("rule", ["l1", "cosine"])
def test_clients_are_assigned_by_what_they_handed_in_themselves(rule):
    rule = assigning(rule, vector(4, 0), vector(0, 4))
    mixed = handed_in(0, 4, 0).mixed(vector(0, 4))
    assert mixed.weights.tolist() == [0, 4]
    assert rule.cluster_for(mixed, (0,)) == 0


def test_only_by_loss_a_client_is_offered_all_models_its_own_first():
    models = vector(4, 0), vector(0, 4), vector(1, 1)
    offered = {name: assigning(name, *models).offered(1) for name in ASSIGNMENTS}
    assert offered == {"l1": (1,), "cosine": (1,), "kl": (1,), "loss": (1, 0, 2)}


def test_by_loss_the_choice_decides_unless_its_cluster_has_ended():
    rule = assigning("loss", vector(4, 0), vector(0, 4))
    assert rule.cluster_for(handed_in(1, 0, 4, chosen=1), (1, 0)) == 0
    assert rule.cluster_for(handed_in(1, 4, 0, chosen=0), (1, 0)) == 1
    assert rule.cluster_for(handed_in(1, 4, 0, chosen=1), (1, 9)) == 1
