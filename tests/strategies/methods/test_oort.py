"""Oort: what clients are worth, who is picked, how exploration decays and the pacer paces."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from polytempo.core.state import digest, pack, unpack
from polytempo.sim.records.evaluation import Stop
from polytempo.strategies.base.participation import Participation, Quota
from polytempo.strategies.methods.fedavg import FedAvg
from polytempo.strategies.methods.oort import LOSSES, Oort, Seen, as_mean_square, scaled
from polytempo.testing import begun, simulator, update, vector

TWO = Quota(count=2)


def oort(clients=4, quota=TWO, **given):
    return begun(Oort(**given), vector(0, 0), clients, quota)


def losses(mean_square):
    return {LOSSES: {"mean": 1.0, "mean_square": mean_square}}


def rounds(strategy, count, seconds=lambda client: 1.0, mean_square=lambda client: 1.0):
    """The clients picked in each of so many rounds, in which everybody hands in and is ready again."""
    now, picked = 0.0, []
    orders = [order for client in strategy.participation.members for order in strategy.ready(client, now) or ()]
    for _ in range(count):
        picked.append([order.client for order in orders])
        orders = handed_in(strategy, orders, now, seconds, mean_square)
        now += max(seconds(client) for client in picked[-1])
    return picked


def handed_in(strategy, orders, now, seconds, mean_square):
    """The orders of the next round, when all have carried out those of this one."""
    following = []
    for order in sorted(orders, key=lambda order: seconds(order.client)):
        client = order.client
        handed = update(client, order.version, order.weights, order.weights)
        strategy.updated(replace(handed, answers=losses(mean_square(client))), now + seconds(client))
        following += strategy.ready(client, now + seconds(client)) or ()
    return following


def how_often(picked):
    return Counter(client for chosen in picked for client in chosen)


def test_utilities_are_clipped_below_the_highest_and_stretched():
    assert scaled([1.0, 3.0, 2.0, 900.0]) == pytest.approx([0, 1, 0.5, 1])
    assert scaled([5.0, 5.0]).tolist() == [0, 0]


def test_a_client_is_worth_its_utility_and_more_if_unseen_for_long_and_less_if_slow():
    strategy = oort(pace=0.5)
    strategy.round = 8
    strategy.seen = {0: Seen(1.0, 2.0, 2), 1: Seen(3.0, 1.0, 7), 2: Seen(2.0, 4.0, 4), 3: Seen(9.0, 2.0, 7)}
    bonus = [math.sqrt(0.1 * math.log(8) / last) for last in (2, 7, 4, 7)]
    # T is the median of 1, 2, 2, 4: only client 2 is slower.
    expected = [0 + bonus[0], 1 + bonus[1], (0.5 + bonus[2]) * (2 / 4) ** 2, 1 + bonus[3]]
    assert strategy.utilities([0, 1, 2, 3]) == pytest.approx(expected)


def test_what_is_seen_of_a_client_is_its_samples_losses_time_and_round():
    strategy = oort(clients=1, quota=Quota())
    (order,) = strategy.ready(0, 10.0)
    assert order.questions == (LOSSES,)
    handed = update(0, 0, order.weights, order.weights + 1, samples=6)
    strategy.updated(replace(handed, answers=losses(4.0)), 13.5)
    assert strategy.seen == {0: Seen(12.0, 3.5, 1)}
    assert torch.allclose(strategy.model.weights, vector(1, 1))


def test_a_slow_client_with_the_same_losses_is_picked_less():
    strategy = oort(clients=6, pace_step=0)
    picked = how_often(rounds(strategy, 80, seconds=lambda client: 9.0 if client < 3 else 1.0))
    assert max(picked[client] for client in (0, 1, 2)) < min(picked[client] for client in (3, 4, 5)) / 2


def test_a_client_with_higher_losses_is_picked_more():
    picked = how_often(rounds(oort(clients=6), 40, mean_square=lambda client: 100.0 if client < 2 else 1.0))
    assert min(picked[client] for client in (0, 1)) > 2 * max(picked[client] for client in (2, 3, 4, 5))


def test_exploration_decays_to_its_least():
    strategy = oort()
    shares = []
    for strategy.round in (1, 2, 11, 200):
        shares.append(strategy.epsilon())
    assert shares == pytest.approx([0.9, 0.9 * 0.98, 0.9 * 0.98**10, 0.2])


def test_a_round_explores_its_share_and_exploits_the_rest():
    strategy = oort(clients=20, quota=Quota(count=10), exploration=0.5, exploration_min=0.3)
    strategy.round = 1
    strategy.seen = {client: Seen(1.0 + client, 1.0, 1) for client in range(10)}
    picked = strategy._picked(list(range(20)), 10)
    assert len(set(picked)) == 10
    assert sum(client < 10 for client in picked) == 5
    assert {client for client in picked if client < 10} <= set(range(4, 10))


def test_a_round_is_full_where_too_few_are_unknown_or_too_few_known():
    strategy = oort(clients=6, quota=Quota(count=4))
    strategy.round = 2
    for known in (0, 1, 5, 6):
        strategy.seen = {client: Seen(1.0, 1.0, 1) for client in range(known)}
        assert len(set(strategy._picked(list(range(6)), 4))) == 4


def test_everybody_is_explored():
    picked = rounds(oort(clients=12, quota=Quota(count=3)), 6)
    assert {client for chosen in picked for client in chosen} == set(range(12))


def test_the_pacer_allows_for_slower_clients_when_less_utility_is_gathered():
    strategy = oort(clients=2, quota=Quota(), window=3, pace=0.3, pace_step=0.4)
    quantiles, falling = [], iter(np.linspace(9, 1, 40))

    class Watched(dict):
        """Looks at the quantile whenever a client is seen."""

        def __setitem__(self, client, seen):
            super().__setitem__(client, seen)
            quantiles.append((seen.round, strategy.quantile))

    strategy.seen = Watched()
    rounds(strategy, 12, mean_square=lambda client: float(next(falling)))
    assert dict(quantiles) == {r: pytest.approx(0.3 if r < 7 else 0.7 if r < 10 else 1.0) for r in range(1, 13)}


def test_the_pacer_rests_while_as_much_utility_is_gathered_as_before():
    strategy = oort(clients=2, quota=Quota(), window=3)
    rounds(strategy, 12)
    assert strategy.quantile == 0.3


@pytest.mark.parametrize(
    "answer",
    [
        None,
        3,
        [],
        {},
        {"mean_square": "1"},
        {"mean_square": math.nan},
        {"mean_square": math.inf},
        {"mean_square": -1.0},
        {"mean_square": True},
        {"mean_square": 10**400},
        {"mean_square": [1.0]},
    ],
)
def test_a_client_that_answers_rubbish_counts_as_unexplored(answer):
    assert as_mean_square(answer) is None
    strategy = oort(clients=2, quota=Quota())
    strategy.seen = {0: Seen(1.0, 1.0, 1)}
    orders = [order for client in (0, 1) for order in strategy.ready(client, 1.0) or ()]
    for order in orders:
        handed = update(order.client, order.version, order.weights, order.weights + 1)
        strategy.updated(replace(handed, answers=losses(1.0) if order.client else {LOSSES: answer}), 2.0)
    assert list(strategy.seen) == [1]
    assert torch.allclose(strategy.model.weights, vector(1, 1))
    assert math.isfinite(strategy.gathered)


def test_a_client_that_claims_boundless_losses_does_not_outshine_the_others():
    strategy = oort(clients=8, quota=Quota(count=3))
    picked = how_often(rounds(strategy, 60, mean_square=lambda client: 1e300 if client == 0 else 1.0 + client))
    assert min(picked[client] for client in (6, 7)) > 20


def test_a_client_that_left_is_forgotten_and_holds_up_nobody():
    strategy = oort(clients=3, quota=Quota())
    orders = [order for client in range(3) for order in strategy.ready(client, 0.0) or ()]
    strategy.seen = {2: Seen(1.0, 1.0, 1)}
    for order in orders[:2]:
        strategy.updated(update(order.client, order.version, order.weights, order.weights), 2.0)
        strategy.ready(order.client, 2.0)
    assert [order.client for order in strategy.left(2, 3.0)] == [0, 1]
    assert not strategy.seen


def test_with_everybody_in_every_round_oort_is_fedavg():
    models = []
    for strategy in (Oort(), FedAvg()):
        simulator(strategy, stop=Stop(updates=12)).run()
        models.append(strategy.model.weights)
    assert torch.equal(*models)


def test_a_run_of_oort_is_the_same_again():
    digests = set()
    for _ in range(2):
        strategy = Oort()
        simulator(strategy, clients=6, participation=Quota(count=2), devices="slow:0.4x5", stop=Stop(updates=20)).run()
        digests.add(digest(strategy.save_state()))
    assert len(digests) == 1
    assert digest(unpack(*pack(strategy.save_state()))) in digests


def test_clients_picked_by_a_method_are_busy():
    participation = Participation(Quota(count=2), seed=0)
    for client in (2, 0, 1):
        participation.join(client)
    assert participation.wanted() == 0
    for client in (2, 0, 1):
        participation.rest(client)
    assert (participation.wanted(), participation.idle()) == (2, [0, 1, 2])
    participation.employ([1, 2])
    assert (participation.busy, participation.idle()) == (2, [0])
