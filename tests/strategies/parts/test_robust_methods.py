"""Methods under robust mixing: what EchoPFL, CASA and others see of updates that are mixed or held back."""

from dataclasses import replace

import pytest
import torch

from polytempo.sim.experiment import make_experiment
from polytempo.sim.records.evaluation import Stop
from polytempo.sim.run import run_experiment
from polytempo.strategies import make_strategy
from polytempo.strategies.parts.robust import Mix, Robust
from polytempo.testing import simulator, update, vector
from support.echoing import BY_L1
from support.robust import HERE, robust


def test_an_update_that_is_held_back_leaves_the_model_as_it_is_though_its_start_is_old():
    server, told = robust("fedavg", 1.0, Mix(5, 0.5), clients=2), []
    server.inner.model.step(vector(5, 5))
    server.inner.updated = lambda one, now: told.append(one)
    server.updated(update(0, 0, HERE, vector(0, 1)), 0.0)
    assert told[0].weights.tolist() == told[0].start.tolist() == [5, 5]
    assert (told[0].samples, told[0].weight) == (1, 0)
    assert told[0].own.delta.tolist() == [0, 1]


def test_where_nobody_waits_for_an_update_one_that_is_held_back_makes_no_version():
    server = robust("fedasync", 1.0, Mix(5, 0.5), clients=2)
    server.updated(update(0, 0, HERE, vector(0, 1)), 0.0)
    assert server.held_back == 1
    assert server.inner.model.version == 0


@pytest.mark.parametrize("name", ["fedasync", "fedbuff", "ca2fl", "casa-c"])
def test_updates_that_lead_nowhere_undo_nothing_however_many_come(name):
    """Whoever hands its start back would mix an old model in, or fill a buffer with nothing."""

    def trained(zeros):
        server = robust(name, 2.0, Mix(5, 0.5), clients=5)
        for turn in range(40):
            for client in range(4):
                list(server.updated(update(client, 0, HERE, vector(1 + turn / 10, client / 10)), 0.0) or ())
            for _ in range(zeros):
                list(server.updated(update(4, 0, HERE, HERE), 0.0) or ())
        return [server.model_for(client).tolist() for client in range(4)]

    assert trained(zeros=10) == trained(zeros=0)


def test_a_client_that_chose_another_branch_is_mixed_with_those_there():
    server, told = robust("ifca-async", mix=Mix(5, 0.5), k=2), []
    server.inner.updated = lambda one, now: told.append(one.delta.tolist())
    for client, (chosen, value) in [*enumerate(((0, 1), (1, 100), (0, 3))), (1, (1, 100))]:
        server.updated(replace(update(client, 0, HERE, vector(value, 0)), chosen=chosen), 0.0)
    assert told == [[100, 0], [2, 0], [100, 0]]


def two_clusters():
    """EchoPFL, in front of which updates are mixed, with a cluster to the right and one above."""
    server = robust("echopfl", mix=Mix(5, 0.5), clients=6, refine_every=0, **BY_L1)
    right, above = vector(4, 0), vector(0, 4)
    for _ in range(2):
        for client in range(5):
            list(server.updated(update(client, 0, HERE, right if client % 2 else above), 0.0) or ())
    assert len({server.cluster_of(client) for client in range(5)}) == 2
    return server


def test_echopfl_mixes_an_update_with_those_of_the_cluster_that_it_joins():
    server = two_clusters()
    joins = server.cluster_of(1)
    list(server.updated(update(5, 0, HERE, vector(3, 0.5)), 0.0) or ())
    assert server.cluster_of(5) == joins
    model = server.model_for(5)
    assert model[0] > 3
    assert model[1] < 0.5


def test_echopfl_founds_its_clusters_with_what_clients_handed_in():
    server = robust("echopfl", 2.0, Mix(5, 0.5), refine_every=0, **BY_L1)
    for client, model in ((0, vector(4, 0)), (1, vector(0, 4)), (2, vector(4, 1)), (0, vector(4, 0))):
        list(server.updated(update(client, 0, HERE, model), 0.0) or ())
    assert sorted(branch.weights.tolist() for branch in server.inner.clusters.branches.values())[0] == [0, 4]
    assert server.inner.founded == 2


def test_echopfl_places_whom_it_observes_and_sends_nothing_to_the_idle():
    server = two_clusters()
    server.inner.training[3] = (server.cluster_of(3),)
    model = server.model_for(3).clone()
    list(server.updated(update(3, 0, HERE, vector(0, 9)), 0.0) or ())
    list(server.updated(update(3, 0, HERE, vector(0, 9)), 0.0) or ())  # out of turn
    assert server.held_back > 0
    assert 3 not in server.inner.training
    assert server.cluster_of(3) == server.cluster_of(0)
    assert model is not None


def test_casa_compares_whom_it_observes():
    server = robust("casa", 2.0, Mix(5, 0.5), clients=4)
    for client in (0, 1):
        server.updated(update(client, 0, HERE, vector(1, client)), 0.0)
    assert server.model_for(0).tolist() == [0, 0]
    assert server.similarity()[1, 0] == pytest.approx(0.5**0.5)
    assert (server.inner.began[:2] == -1).all()


def test_fedat_makes_a_tiers_model_of_those_that_were_not_held_back():
    server = robust("fedat", mix=Mix(3, 0.5), clients=2)
    for client in (0, 1):
        list(server.ready(client, 0.0) or ())
    for client in (0, 1):
        list(server.updated(update(client, 0, HERE, vector(2, 2), samples=7), 1.0) or ())
    assert server.model_for(0).tolist() == [2, 2]  # the first was held back
    assert server.inner.samples == {0: 1, 1: 7}  # nor do its samples count when tiers are mixed


def test_casa_mixes_a_newcomer_with_those_of_the_cluster_that_it_is_put_into():
    server = robust("casa", mix=Mix(5, 0.5), clients=7)
    server.inner.clusters.dismiss(6)
    server.inner.clusters.split(0, [[0, 1], [2, 3, 4, 5]], 0.0, {})
    for client in (0, 1, 2, 3, 0, 1):
        server.updated(update(client, 0, HERE, vector(4, 0) if client < 2 else vector(0, 4)), 0.0)
    newcomer = update(6, 0, HERE, vector(3, 1))
    assert server.branch_of(newcomer) == server.cluster_of(0) != server.cluster_of(2)


def test_casa_tells_groups_apart_although_their_updates_are_mixed():
    given = {"strategy": "casa", "partition": "groups", "clients": 12, "updates": 480}
    result = run_experiment(make_experiment(**given, clip=3, robust="median:5")).result
    assert result["purity"] == 1.0
    assert result["clusters"] >= 4


@pytest.mark.parametrize("method", ["fedavg", "fedcompass", "fedsea", "port", "fedat"])
def test_who_hands_its_start_back_has_no_weight_whatever_its_samples(method):
    """Of six clients the last leads nowhere: the models are the same if it claims a thousand million samples."""
    models = []
    for claimed in (20, 10**9):
        server = Robust(make_strategy(method, {}), 3.0, Mix(5, 0.5))
        updated = server.updated

        def lied_to(one, now, updated=updated, claimed=claimed):
            return updated(replace(one, weights=one.start, samples=claimed) if one.client == 5 else one, now)

        server.updated = lied_to
        sim = simulator(server, clients=6, stop=Stop(updates=36))
        sim.run()
        models.append(server.model_for(0))
    assert torch.equal(*models)
    assert not torch.equal(models[0], server.setting.initial)
