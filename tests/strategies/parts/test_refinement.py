"""EchoPFL's refinement of clusters: who is expanded out of one, which two are merged, and into what."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from polytempo.core.model.vectors import schema_of
from polytempo.core.orders import Send, Train
from polytempo.strategies.parts.refinement import along_direction, most_alike, worst_fifth
from polytempo.strategies.parts.soft_labels import divergence
from polytempo.testing import vector
from polytempo_client.model.schema import Schema
from support.echoing import EchoPFL, echopfl, fit, handed_in, model


def test_the_worst_fifth_are_those_with_the_highest_feedback():
    assert worst_fifth({7: 0.1, 3: 0.9, 5: 0.2, 1: 0.3, 2: 0.4}) == [3]
    assert worst_fifth(dict.fromkeys(range(8), 1.0)) == [6, 7]  # 1.6 is 2; of equals the highest numbers
    assert worst_fifth(dict.fromkeys(range(4), 1.0)) == []


def with_one_cluster_of_six(shares_of_6: tuple[float, float] = (0.5, 0.5), **parameters: Any) -> EchoPFL:
    """Clients 0 and 2 to 6 in cluster 0, with feedbacks as high as their numbers; client 1 alone in cluster 1."""
    made = echopfl(clients=7, refine_every=16, **parameters)  # 2 updates so far
    for _ in range(2):
        for client in (0, 2, 3, 4, 5, 6):
            handed_in(made, client, vector(0, 0), fit(float(client), *(shares_of_6 if client == 6 else (0.5, 0.5))))
    return made


@pytest.mark.parametrize(("shares", "expanded"), [((0.5, 0.5), False), ((0.3, 0.7), False), ((0.1, 0.9), True)])
def test_clients_with_soft_labels_like_those_of_the_others_are_not_expanded(
    shares: tuple[float, float], expanded: bool
) -> None:
    """(.3, .7) diverges from (.5, .5) by .2 log(.5/.3) + .2 log(.7/.5) = .17, (.1, .9) by .4 log(5 * 1.8) = .88."""
    made = with_one_cluster_of_six(shares, alike_below=0.5)
    for _ in range(2):
        handed_in(made, 1, vector(8, 0), fit(0.0, 0.5, 0.5))
    assert [moved.clients for moved in made.regroupings()] == [(6,)] * expanded


def test_after_every_period_the_worst_served_fifth_of_a_cluster_gets_its_own():
    made = with_one_cluster_of_six()
    assert len(made.clusters.branches) == 2
    handed_in(made, 1, vector(8, 0), fit(0.0, 0.5, 0.5))
    handed_in(made, 1, vector(8, 0), fit(0.0, 0.5, 0.5))  # the 16th
    assert made.clusters.home[6] == 2
    assert list(made.clusters.members[0]) == [0, 2, 3, 4, 5]
    assert made.clusters.branches[2].weights is made.clusters.branches[0].weights
    (expansion,) = made.regroupings()
    assert (expansion.kind, expansion.source, expansion.target, expansion.clients) == ("expansion", 0, 2, (6,))
    assert expansion.why == {"feedback": 6.0, "of_the_others": pytest.approx((0 + 2 + 3 + 4 + 5) / 5)}
    assert 6 not in made.feedback


def test_an_expanded_cluster_trains_its_last_layer_only_until_the_next_merging():
    made = with_one_cluster_of_six()
    for _ in range(2):
        handed_in(made, 1, vector(8, 0))
    order = next(iter(made.ready(6, 0.0)))
    assert isinstance(order, Train)
    assert order.trainable == ("w",)
    made.left(6, 0.0)
    made.joined(6, 0.0)
    for _ in range(8):
        handed_in(made, 1, vector(8, 0))
    assert next(iter(made.ready(6, 0.0))).trainable == ()  # type: ignore[union-attr]


def test_without_last_layer_an_expanded_cluster_trains_in_full():
    made = with_one_cluster_of_six(last_layer=False)
    for _ in range(2):
        handed_in(made, 1, vector(8, 0))
    assert next(iter(made.ready(6, 0.0))).trainable == ()  # type: ignore[union-attr]


def test_the_last_layer_is_the_one_with_the_last_parameters():
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    assert schema_of(module).last_layer == "2"
    assert Schema(("w",), ((2,),), 2).last_layer == "w"


def test_after_a_first_reassignment_an_expanded_client_is_where_it_was_put():
    made = with_one_cluster_of_six()
    for _ in range(2):
        handed_in(made, 1, vector(8, 0))
    handed_in(made, 6, vector(0.1, 0))  # as far from its cluster as from the one that it came from
    assert made.clusters.home[6] == 2


def test_merging_follows_the_other_model_where_training_leads_towards_it():
    main, other, latest = vector(0, 0, 0, 0), vector(2, 2, -2, 4), vector(1, -1, -2, 0)
    # dir * post = (2, -2, 4, 0), so alpha = (.5, 0, 1, 0)
    assert along_direction(main, other, latest).tolist() == [1, 0, -2, 0]


def test_merging_leaves_the_main_model_where_training_leads_nowhere_towards_the_other():
    main = vector(0, 0)
    assert along_direction(main, vector(1, 1), vector(-1, 0)) is main


def test_merging_models_too_large_for_a_product_makes_no_nan():
    main, other = vector(0, 1), vector(1e30, -1e30)
    assert torch.isfinite(along_direction(main, other, vector(1e30, 1e30))).all()


LABELS = {40: np.array([0.9, 0.1]), 10: np.array([0.1, 0.9]), 70: np.array([0.8, 0.2]), 71: np.array([0.8, 0.2])}
"""Of client 90 nothing is known."""


def test_the_most_alike_clusters_have_the_least_divergence_and_the_larger_is_the_main_one():
    apart = pytest.approx(divergence(LABELS[40], LABELS[70]))
    assert most_alike({4: [40], 1: [10], 7: [70], 9: [90]}, LABELS) == (4, 7, apart)
    assert most_alike({4: [40], 1: [10], 7: [70, 71], 9: [90]}, LABELS) == (7, 4, apart)


def test_clusters_of_which_nothing_is_known_are_not_alike():
    assert most_alike({4: [40], 9: [90]}, LABELS) is None


def with_three_clusters(**parameters: Any) -> EchoPFL:
    """Cluster 0 with clients 0 and 2, 1 with 1, 2 with 3, of which 1 and 2 are alike; one update before merging."""
    made = echopfl(refine_every=4, merge_above=1, **parameters)
    handed_in(made, 0, vector(0, 0), fit(0.0, 0.9, 0.1))
    handed_in(made, 2, vector(0, 0), fit(0.0, 0.9, 0.1))  # the 4th: nobody is expanded, merging is due in two
    handed_in(made, 1, vector(8, 0), fit(0.0, 0.2, 0.8))
    made.clusters.add(made.clusters.branches[1].__class__(vector(8, 6), 5), [3])
    made.echoes[2] = made.echoes[1].expanded(vector(8, 6))
    made.soft_labels[3] = np.array([0.1, 0.9])
    return made


def test_the_most_alike_clusters_merge_and_their_model_is_broadcast():
    made = with_three_clusters()
    training = next(iter(made.ready(3, 0.0)))
    assert isinstance(training, Train)
    orders = handed_in(made, 1, vector(8, 3), fit(0.0, 0.2, 0.8))  # the 6th: client 1 may have moved its own cluster
    assert sorted(made.clusters.branches) == [0, 1]
    assert made.clusters.members[1] == {1: None, 3: None}
    assert made.clusters.branches[1].version == 6  # above both
    # v_main = (8, 1.5) after the update, dir = (0, 4.5), post = (0, 1.5): alpha = (0, 1)
    assert model(made, 1) == pytest.approx([8, 6])
    assert [(o.client, o.version) for o in orders if isinstance(o, Send)] == [(3, 6)]
    (merge,) = made.regroupings()
    assert (merge.kind, merge.source, merge.target, merge.clients) == ("merge", 2, 1, (3,))


def test_clusters_that_are_alike_merge_however_few_there_are():
    made = with_three_clusters(first_clusters=2, alike_below=0.5)
    made.merge_above = 5.0  # ten clusters would not be too many
    handed_in(made, 1, vector(8, 3), fit(0.0, 0.2, 0.8))
    # (.2, .8) diverges from (.1, .9) by .1 log 2 + .1 log 1.125 = .08, and from (.9, .1) by 2.5
    assert [(merge.source, merge.target) for merge in made.regroupings()] == [(2, 1)]
    assert sorted(made.clusters.branches) == [0, 1]


def test_the_last_cluster_merges_with_nobody():
    assert most_alike({4: [40]}, LABELS) is None


def test_models_can_be_merged_by_their_mean():
    made = with_three_clusters(merging="average")
    handed_in(made, 1, vector(8, 3), fit(0.0, 0.2, 0.8))
    assert model(made, 1) == pytest.approx([8, (1.5 + 6) / 2])


def test_without_broadcasts_not_even_a_merged_model_is_sent():
    made = with_three_clusters(broadcast="never")
    list(made.ready(3, 0.0))
    assert handed_in(made, 1, vector(8, 3), fit(0.0, 0.2, 0.8)) == []


def test_a_cluster_that_nobody_is_in_ends_and_who_comes_back_to_it_is_a_newcomer():
    made = echopfl(refine_every=4)
    made.left(1, 0.0)
    for _ in range(2):
        handed_in(made, 0, vector(0, 0))
    assert list(made.clusters.branches) == [0]
    made.joined(1, 0.0)
    assert made.clusters.newcomers == dict.fromkeys((2, 3, 4, 5, 1))
    handed_in(made, 1, vector(8, 0))
    assert made.clusters.home[1] == 0
