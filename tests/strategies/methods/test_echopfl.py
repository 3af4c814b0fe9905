"""EchoPFL: assignment on arrival, feedback and broadcasts, each by hand-computed cases; and what holds whatever
happens."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from polytempo.core.events import Update
from polytempo.core.model.vectors import flatten, schema_of
from polytempo.core.orders import Order, Send, Train
from polytempo.learn.job import Batches, Job
from polytempo.learn.learner import Learner
from polytempo.learn.questions import Asked, questions
from polytempo.learn.scoring import Scorer
from polytempo.sim.records.evaluation import Stop
from polytempo.strategies import Setting, make_strategy
from polytempo.strategies.methods.echopfl import EchoPFL
from polytempo.testing import begun, simulator, update, vector
from polytempo_client.model.schema import Schema
from polytempo_client.streams import stream
from support.echoing import BY_L1, CLIENTS, echopfl, fit, handed_in, model

# Assignment.


def test_the_first_updates_found_clusters_and_later_ones_join_the_nearest_in_l1():
    made = echopfl()
    assert (model(made, 0), model(made, 1)) == ([0, 0], [8, 0])
    handed_in(made, 2, vector(3, 0))
    handed_in(made, 3, vector(4, 4))  # 8 from cluster 0, now at (1, 0): 7; from cluster 1: 8
    assert made.clusters.home == {0: 0, 1: 1, 2: 0, 3: 0}


def test_a_client_founds_only_one_cluster():
    made = begun(make_strategy("echopfl", BY_L1), vector(1, 1))
    assert isinstance(made, EchoPFL)
    handed_in(made, 0, vector(0, 0))
    handed_in(made, 0, vector(9, 9))
    assert list(made.clusters.branches) == [0]
    assert made.clusters.members[0] == {0: None}


def test_in_the_papers_preset_an_update_counts_as_one_member():
    made = echopfl()
    handed_in(made, 2, vector(3, 0))
    assert model(made, 0) == pytest.approx([1, 0])  # two members: a third of (3, 0)
    handed_in(made, 3, vector(1, 4))
    assert model(made, 0) == pytest.approx([1, 1])  # three members: a quarter of the way


def test_an_update_may_count_as_several_members():
    made = echopfl(counts_as=3.0)
    handed_in(made, 2, vector(3, 0))
    assert model(made, 0) == pytest.approx([1.8, 0])  # two members: three fifths of the way


def test_a_client_is_assigned_anew_with_every_update_and_stays_on_a_tie():
    made = echopfl()
    handed_in(made, 2, vector(1, 0))
    handed_in(made, 2, vector(8, 0))
    assert made.clusters.home[2] == 1
    made.clusters.branches[0].replace(vector(0, 0))
    made.clusters.branches[1].replace(vector(8, 0))
    handed_in(made, 2, vector(4, 0))
    assert made.clusters.home[2] == 1


def test_by_cosine_the_direction_from_the_initial_model_decides():
    made = echopfl(assignment="cosine")
    handed_in(made, 2, vector(-30, -30))  # from (1, 1), cluster 0 lies at (-1, -1) and cluster 1 at (7, -1)
    assert made.clusters.home[2] == 0
    handed_in(made, 3, vector(2, 1))  # nearer to cluster 0, but on the way to cluster 1
    assert made.clusters.home[3] == 1


def test_by_kl_the_soft_labels_of_the_members_decide():
    made = begun(make_strategy("echopfl", {"assignment": "kl"}), vector(1, 1), CLIENTS)
    assert isinstance(made, EchoPFL)
    handed_in(made, 0, vector(0, 0), {"soft-labels": [0.9, 0.1]})
    handed_in(made, 1, vector(8, 0), {"soft-labels": [0.2, 0.8]})
    handed_in(made, 2, vector(8, 0), {"soft-labels": [0.7, 0.3]})
    assert made.clusters.home[2] == 0
    handed_in(made, 3, vector(0, 0), {"soft-labels": [0.4, 0.6]})  # cluster 0 is at (.8, .2) by now
    assert made.clusters.home[3] == 1
    handed_in(made, 3, vector(0, 0), {"soft-labels": [0.6, 0.4]})  # its own answer does not keep it: client 1 is far
    assert made.clusters.home[3] == 0


@pytest.mark.parametrize(("assignment", "home"), [("l1", 0), ("kl", 1)])
def test_a_client_that_a_refresh_keeps_near_a_wrong_cluster_leaves_it_by_kl_and_not_by_l1(assignment, home):
    made = begun(make_strategy("echopfl", {**BY_L1, "assignment": assignment}), vector(1, 1), CLIENTS)
    assert isinstance(made, EchoPFL)
    ours, theirs = ({"soft-labels": [share, 1 - share]} for share in (0.9, 0.1))
    for client, place, answers in ((0, 0, ours), (1, 8, theirs), (2, 0, ours)):
        handed_in(made, client, vector(place, 0), answers)
    assert made.clusters.home[2] == 0
    handed_in(made, 2, vector(1, 0), theirs)  # few steps after a refresh; its data are those of cluster 1
    assert made.clusters.home[2] == home


def test_by_default_an_update_counts_as_six_members():
    made = begun(make_strategy("echopfl", {}), vector(1, 1), CLIENTS)
    assert isinstance(made, EchoPFL)
    label = {"soft-labels": [0.9, 0.1]}
    for client, place in ((0, 0), (1, 8), (0, 7)):
        handed_in(made, client, vector(place, 0), label if client == 0 else {"soft-labels": [0.1, 0.9]})
    assert model(made, 0) == pytest.approx([6, 0])  # one member: six sevenths of the way


def test_by_loss_a_client_is_offered_all_models_its_own_first_and_goes_where_it_chose():
    made = echopfl(assignment="loss")
    handed_in(made, 2, vector(1, 0))
    order = next(iter(made.ready(2, 0.0)))
    assert isinstance(order, Train)
    assert order.candidates is not None
    assert [m.tolist() for m in order.candidates.models] == [model(made, 0), model(made, 1)]
    list(made.updated(Update(2, order.version, order.weights, vector(1, 0), 1, 1, chosen=1), 0.0))
    assert made.clusters.home[2] == 1
    next_order = next(iter(made.ready(2, 0.0)))
    assert isinstance(next_order, Train)
    assert next_order.candidates is not None
    assert next_order.candidates.models[0].tolist() == model(made, 1)


def test_a_newcomer_that_chose_by_loss_goes_where_it_chose():
    made = echopfl(assignment="loss")
    order = next(iter(made.ready(2, 0.0)))
    assert isinstance(order, Train)
    for client in (3, 4):
        handed_in(made, client, vector(8, 0))
    assert made.clusters.largest() == 1
    list(made.updated(Update(2, order.version, order.weights, vector(8, 0), 1, 1, chosen=0), 0.0))
    assert made.clusters.home[2] == 0


def test_who_was_offered_several_models_is_sent_no_broadcast():
    """It may train that of another cluster, which is known only when it hands in."""
    made = echopfl(assignment="loss", broadcast="always")
    handed_in(made, 2, vector(1, 0), chosen=0)
    list(made.ready(2, 0.0))
    assert handed_in(made, 0, vector(0, 1), chosen=0) == []


def test_who_chose_its_own_cluster_stays_where_an_expansion_has_brought_it_meanwhile():
    made = echopfl(assignment="loss")
    handed_in(made, 2, vector(1, 0))
    order = next(iter(made.ready(2, 0.0)))
    assert isinstance(order, Train)
    expanded = made.clusters.expand(0, [2], 0.0, {})
    made.echoes[expanded] = made.echoes[0].expanded(made.clusters.branches[expanded].weights)
    list(made.updated(Update(2, order.version, order.weights, vector(1, 0), 1, 1, chosen=0), 0.0))
    assert made.clusters.home[2] == expanded


def test_a_client_without_a_cluster_is_given_the_largest_ones_model():
    made = echopfl()
    handed_in(made, 2, vector(7, 0))
    assert made.model_for(4).tolist() == model(made, 1)
    assert made.clusters.newcomers == dict.fromkeys((3, 4, 5))


# Feedback.


def test_feedback_is_chi_squared_times_the_variance_of_the_soft_labels():
    module = nn.Sequential(nn.Linear(3, 3))
    weights = flatten(schema_of(module), {"0.weight": 2 * torch.eye(3), "0.bias": torch.zeros(3)})
    x = torch.eye(3)[[0, 0, 1, 1]]  # predicted as they are: labels 0, 0, 1, 1
    y = torch.tensor([0, 1, 1, 1])
    answer = questions["fit"](Asked(Scorer(module), x, y, np.arange(4), weights, weights))
    high, low = math.exp(2) / (math.exp(2) + 2), 1 / (math.exp(2) + 2)
    soft = [(high + low) / 2, (high + low) / 2, low]
    assert answer["soft_labels"] == pytest.approx(soft)
    chi_squared = (0.5 - 0.25) ** 2 / 0.25 + (0.5 - 0.75) ** 2 / 0.75
    assert answer["feedback"] == pytest.approx(chi_squared * np.var(soft))


def test_feedback_is_about_the_model_received_and_soft_labels_about_the_one_trained():
    module = nn.Sequential(nn.Linear(2, 2))
    received, trained = vector(0, 0, 0, 0, 0, 0), vector(0, 0, 0, 0, 9, 0)
    asked = Asked(Scorer(module), torch.ones(3, 2), torch.tensor([0, 0, 1]), np.arange(3), received, trained)
    assert questions["fit"](asked)["soft_labels"] == [0.5, 0.5]
    assert questions["soft-labels"](asked)[0] > 0.99


def test_feedback_counts_while_it_is_about_the_model_of_ones_cluster():
    made = begun(make_strategy("echopfl", BY_L1), vector(1, 1), CLIENTS)
    assert isinstance(made, EchoPFL)
    early = next(iter(made.ready(2, 0.0)))
    assert isinstance(early, Train)
    handed_in(made, 0, vector(0, 0))
    handed_in(made, 1, vector(8, 0))
    list(made.updated(Update(2, early.version, early.weights, vector(1, 0), 1, 1, answers=fit(3.0, 1, 0)), 0.0))
    assert made.feedback == {}  # it was about the initial model
    handed_in(made, 2, vector(1, 0), fit(2.0, 1, 0))
    assert made.feedback == {2: 2.0}
    handed_in(made, 2, vector(9, 0), fit(5.0, 1, 0))
    assert made.feedback == {}  # it moved on to another
    handed_in(made, 2, vector(9, 0), {"fit": {"feedback": 0}})
    assert made.feedback == {2: 0.0}


def test_the_feedback_of_a_slow_client_counts_though_it_was_regrouped_while_it_trained():
    made = echopfl()
    handed_in(made, 2, vector(1, 0))
    order = next(iter(made.ready(2, 0.0)))
    assert isinstance(order, Train)
    expanded = made.clusters.expand(0, [2], 0.0, {})
    made.echoes[expanded] = made.echoes[0].expanded(made.clusters.branches[expanded].weights)
    list(made.updated(Update(2, order.version, order.weights, vector(1, 0), 1, 1, answers=fit(2.0, 1, 0)), 0.0))
    assert made.feedback == {2: 2.0}


def test_by_loss_feedback_is_about_the_model_that_was_chosen():
    made = echopfl(assignment="loss")
    handed_in(made, 2, vector(1, 0), chosen=0)
    handed_in(made, 2, vector(1, 0), fit(4.0, 1, 0), chosen=1)
    assert (made.clusters.home[2], made.feedback[2]) == (1, 4.0)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"fit": None},
        {"fit": 3},
        {"fit": {"feedback": "much", "soft_labels": "all"}},
        {"fit": {"feedback": -1.0, "soft_labels": [-1.0, 2.0]}},
        {"fit": {"feedback": 1e300, "soft_labels": [0.5, 0.6]}},
        {"fit": {"feedback": float("nan"), "soft_labels": [float("nan"), 1.0]}},
        {"fit": {"feedback": float("inf"), "soft_labels": [[1.0], [2.0, 3.0]]}},
        {"fit": {"feedback": [1.0], "soft_labels": []}},
        {"fit": {"feedback": {}, "soft_labels": {"a": 1}}},
    ],
)
def test_answers_that_make_no_sense_do_not_count(answer):
    made = echopfl(refine_every=2)
    for _ in range(5):
        handed_in(made, 2, vector(1, 0), answer)
    assert made.feedback == {}
    assert made.soft_labels == {}


# Whatever happens.

happenings = st.lists(
    st.tuples(
        st.sampled_from(["update", "update", "update", "leave", "join"]),
        st.integers(0, 9),
        st.integers(-3, 3),
        st.integers(-3, 3),
        st.floats(0, 2),
        st.integers(1, 9),
    ),
    max_size=60,
)


@settings(max_examples=60)
@given(
    happenings,
    st.sampled_from(["l1", "cosine", "kl"]),
    st.sampled_from(["accumulated", "eq4", "never"]),
    st.sampled_from([0.0, 1.0]),
)
def test_every_client_is_in_exactly_one_cluster_whatever_is_expanded_and_merged(events, assignment, policy, alike):
    made = make_strategy(
        "echopfl",
        {"assignment": assignment, "broadcast": policy, "refine_every": 3, "merge_above": 1, "alike_below": alike},
    )
    made.begin(Setting(vector(0, 0), Schema(("w",), ((2,),), 2)))
    assert isinstance(made, EchoPFL)
    there: set[int] = set()
    handed: set[int] = set()
    for what, client, x, y, feedback, share in events:
        if what == "join" and client not in there:
            made.joined(client, 0.0)
            there.add(client)
        elif what == "leave" and client in there:
            list(made.left(client, 0.0) or ())
            there.discard(client)
        elif what == "update" and client in there:
            answers = fit(feedback, share / 10, 1 - share / 10) | {"soft-labels": [share / 10, 1 - share / 10]}
            for order in handed_in(made, client, vector(x, y), answers):
                assert isinstance(order, Send)
                assert order.client in there
            handed.add(client)
        members = [c for cluster in made.clusters.members.values() for c in cluster]
        assert sorted([*members, *made.clusters.newcomers]) == sorted(there)
        assert all(client in made.clusters.members[made.clusters.home[client]] for client in members)
        assert set(made.clusters.members) == set(made.clusters.branches)
        assert not made.founded or set(made.echoes) == set(made.clusters.branches)
        assert set(made.fine_tuned) <= set(made.clusters.branches)


# In a simulation.


def test_a_refresh_in_mid_training_spends_only_the_steps_left(monkeypatch):
    """Of two clients one is five times as slow, so that broadcasts meet it in training."""
    refreshed: dict[int, int] = {}
    carry_out = Learner.carry_out

    def check(learner: Learner, assignment: Any) -> Any:
        outcome = carry_out(learner, assignment)
        if assignment.sends:
            step, last = assignment.sends[-1]
            refreshed[assignment.order.client] = step
            a = assignment
            rng = stream(a.seed, "batches", a.order.client, a.count)
            batches = learner.batches(a.rows, a.order.work, a.steps, rng)
            left = Batches(batches.rows[batches.offsets[step] :], batches.offsets[step:] - batches.offsets[step])
            alone = learner.engine.train(
                Job(last.weights, assignment.x, assignment.y, left, assignment.order.work, 0.1)
            )
            assert torch.equal(outcome.update.weights, alone)
            assert (outcome.update.start, outcome.update.version) == (last.weights, last.version)
        return outcome

    monkeypatch.setattr(Learner, "carry_out", check)
    strategy = make_strategy(
        "echopfl", {"preset": "paper", "broadcast": "always", "first_clusters": 1, "refine_every": 0}
    )
    sim = simulator(strategy, 2, "types:D1,D5", Stop(updates=12))
    sim.run()
    assert 0 < refreshed[1] < 4
    slow = [row for row in sim.history.updates if row["client"] == 1]
    assert all(row["time"] - row["began"] < 4 * 4.92 * 1.3 for row in slow)  # as long as without refreshes


WORLDS = ["homogeneous", "slow:0.3x5", "exponential", "types"]


@pytest.mark.parametrize("devices", WORLDS)
@pytest.mark.parametrize("assignment", ["kl", "l1", "loss"])
def test_under_the_default_policy_less_than_one_in_rho_aggregations_is_broadcast(devices, assignment, monkeypatch):
    aggregations, broadcasts = counted(monkeypatch)
    strategy = make_strategy("echopfl", {"assignment": assignment, "refine_every": 20})
    simulator(strategy, 10, devices, Stop(updates=400)).run()
    assert broadcasts
    merges = sum(regrouping.kind == "merge" for regrouping in strategy.regroupings())
    assert len(broadcasts) <= len(aggregations) / strategy.rho + merges  # type: ignore[attr-defined]


def counted(monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], list[int]]:
    """Grows with every aggregation, and with every broadcast."""
    from polytempo.strategies.parts.echo import Echo

    aggregations: list[int] = []
    broadcasts: list[int] = []
    record, mark_sent = Echo.record, Echo.mark_sent
    monkeypatch.setattr(Echo, "record", lambda echo, *given: (aggregations.append(1), record(echo, *given))[1])
    monkeypatch.setattr(Echo, "mark_sent", lambda echo, *given: (broadcasts.append(1), mark_sent(echo, *given))[1])
    return aggregations, broadcasts


def test_pull_answers_with_the_model_of_ones_branch():
    made = echopfl(refresh="rebase")
    (answer,) = made.pulled(1, 0.0)
    assert (answer.client, answer.weights.tolist(), answer.rebase) == (1, [8, 0], True)
    (for_a_newcomer,) = made.pulled(5, 0.0)
    assert for_a_newcomer.weights.tolist() == [0, 0]


def orders_of(found: Iterable[Order]) -> list[int]:
    return [order.client for order in found if isinstance(order, Send)]


def test_a_broadcast_goes_to_the_members_in_training():
    made = echopfl(broadcast="always")
    for client in (2, 3, 4):
        handed_in(made, client, vector(1, 0))
    for client in (2, 4, 1):
        list(made.ready(client, 0.0))
    assert orders_of(handed_in(made, 0, vector(0, 1))) == [2, 4]
    made.left(4, 0.0)
    assert orders_of(handed_in(made, 0, vector(0, 1))) == [2]


def test_without_clustering_everybody_shares_one_model():
    strategy = make_strategy("echopfl", {"first_clusters": 1, "refine_every": 0})
    sim = simulator(strategy, 5, "slow:0.4x5", Stop(updates=60))
    sim.run()
    assert {row["clusters"] for row in sim.history.evaluations} == {1}
    assert not strategy.regroupings()


def test_staleness_counts_versions_of_ones_own_branch():
    made = echopfl()
    handed_in(made, 2, vector(1, 0))
    version = made.clusters.branches[0].version
    assert made.tau(update(2, version - 2, vector(0, 0), vector(0, 0))) == 2
