"""The samples that a client claims are believed up to a multiple of the median claim."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polytempo.core.errors import UserError
from polytempo.core.state import digest
from polytempo.serve.journal.settings import ServiceSettings
from polytempo.sim.experiment import make_experiment
from polytempo.strategies import make_strategy
from polytempo.strategies.parts.claims import CappedSamples
from polytempo.strategies.parts.robust import Robust
from polytempo.testing import begun, update, vector
from support.robust import HERE, Listener
from support.serving import hosted, restarted

LIE = 10**9
BATCH = 10
"""The batch size of a strategy that is told nothing else."""


def capped(cap=10.0, clients=10, inner=None):
    return begun(CappedSamples(inner or Listener(), cap), HERE, clients)


def claim(server, client, samples):
    """The samples that the strategy is told."""
    server.updated(update(client, 0, HERE, vector(1, 1), samples=samples), 0.0)
    return server.inner.told[-1].samples


def test_a_claim_counts_up_to_a_multiple_of_the_median_claim():
    server = capped()
    for client in range(9):
        claim(server, client, 100)
    assert claim(server, 9, LIE) == 1000
    assert claim(server, 0, 900) == 900


def test_whoever_claims_first_is_not_measured_by_itself():
    server = capped()
    assert claim(server, 0, LIE) == 10 * BATCH
    assert [claim(server, client, 140) for client in range(1, 6)] == [100, 100, 140, 140, 140]
    assert claim(server, 0, LIE) == 1400


def test_a_client_has_one_vote_however_often_it_hands_in():
    server = capped()
    for client in range(6):
        claim(server, client, 100)
    for _ in range(50):
        assert claim(server, 9, LIE) == 1000


def test_whoever_leaves_keeps_its_vote():
    server = capped()
    for client in range(9):
        claim(server, client, 100)
        server.left(client, 1.0)
    assert claim(server, 9, LIE) == 1000


def test_two_honest_clients_with_different_data_count_as_they_say():
    server = capped(clients=2)
    for _ in range(2):
        claimed = [claim(server, 0, 200), claim(server, 1, 1500)]
    assert claimed == [200, 1500]


def test_what_is_believed_is_what_the_client_handed_in_itself():
    """Methods that compare clients look at ``update.own``."""
    server = capped(inner=Robust(Listener(), 3.0, None))
    server.updated(update(0, 0, HERE, vector(1, 1), samples=LIE), 0.0)
    told = server.inner.inner.told[-1]
    assert told.samples == told.weight == told.own.samples == 10 * BATCH


claims = st.lists(st.tuples(st.integers(0, 7), st.integers(1, LIE)), min_size=1, max_size=30)


@given(claims, st.floats(1, 100))
def test_no_claim_counts_for_more_than_the_cap_nor_for_more_than_was_claimed(handed, cap):
    server, newest = capped(cap, clients=8), {}
    for client, samples in handed:
        newest[client] = samples
        believed = claim(server, client, samples)
        known = sorted([*newest.values(), *[BATCH] * (5 - len(newest))])
        assert 1 <= believed <= samples
        assert believed <= math.floor(cap * known[(len(known) - 1) // 2])


@given(st.permutations(range(8)), st.lists(st.integers(1, LIE), min_size=8, max_size=8))
def test_the_order_of_arrival_does_not_matter_once_everybody_has_claimed(order, samples):
    server, sorted_server = capped(clients=8), capped(clients=8)
    for one, clients in ((server, order), (sorted_server, range(8))):
        for client in clients:
            claim(one, client, samples[client])
    assert [claim(server, client, samples[client]) for client in range(8)] == [
        claim(sorted_server, client, samples[client]) for client in range(8)
    ]


def test_a_saved_state_goes_on_with_the_same_votes():
    servers = [capped(clients=clients, inner=make_strategy("fedasync", {})) for clients in (8, 0)]
    for client in range(6):
        servers[0].updated(update(client, 0, HERE, vector(1, 1), samples=100 + client), 0.0)
    servers[1].load_state(servers[0].save_state())
    for server in servers:
        server.updated(update(7, 0, HERE, vector(1, 1), samples=LIE), 0.0)
    assert digest(servers[0].save_state()) == digest(servers[1].save_state())
    assert servers[1].claims[7] == LIE


@pytest.mark.parametrize("strategy", ["fedavg", "fedasync", "casa"])
def test_a_service_with_its_default_defences_is_replayed_to_the_same_bits(strategy, tmp_path):
    defaults = {name: ServiceSettings.model_fields[name].default for name in ("clip", "samples_cap")}
    with hosted(tmp_path, strategy, **defaults) as served:
        for client in range(4):
            served.hello(client)
            served.ready(client)
        for turn in range(6):
            for client in range(4):
                if served.task(client):
                    served.push(client, 0.1 * (client + 1) * (30 if client == 3 else 1), samples=LIE if turn else 10)
        assert restarted(served.copied(tmp_path / "crash"), served.settings) == served.digest()


@pytest.mark.parametrize("bad", [0.5, -1, "inf", "many"])
def test_a_cap_below_one_is_refused(bad):
    with pytest.raises(UserError, match="samples_cap"):
        make_experiment(strategy="fedasync", samples_cap=bad)


@pytest.mark.parametrize("name", ["clip", "samples_cap"])
def test_the_word_none_turns_a_defence_off(name):
    assert getattr(make_experiment(strategy="fedasync", **{name: "none"}), name) is None
