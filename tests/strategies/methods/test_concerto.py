"""Concerto's server, by hand-computed updates, and whole runs of it."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from polytempo import simulate
from polytempo.core.orders import Train
from polytempo.strategies.methods.concerto import ALL, REHEARSALS, Concerto
from polytempo.testing import begun, update, vector
from polytempo_client.personal.told import TUTTI, JuryScores

W = vector(0, 0, 0, 0)
NORTH, SOUTH = vector(1, 0, 0, 0), vector(0, 1, 0, 0)


def concerto(clients: int = 8, **parameters: object) -> Concerto:
    return begun(Concerto(**parameters), W, clients)  # type: ignore[arg-type]


def order_of(strategy: Concerto, client: int) -> Train:
    (order,) = strategy.ready(client, 0.0) or ()
    assert isinstance(order, Train)
    return order


def hand_in(
    strategy: Concerto, order: Train, delta: Tensor, jury: JuryScores | None = None, chosen: int | None = None
) -> None:
    start, version = order.weights, order.version
    if chosen is not None:
        assert order.candidates is not None
        start, version = order.candidates.models[chosen], order.candidates.versions[chosen]
    done = update(order.client, version, start, start + delta)
    strategy.updated(replace(done, jury=jury, chosen=chosen), 1.0)


def branched() -> Concerto:
    """Eight clients, of whom the even ones pull north and the odd ones south: two branches."""
    strategy = concerto()
    for order in [order_of(strategy, client) for client in range(8)]:
        hand_in(strategy, order, SOUTH if order.client % 2 else NORTH)
    assert len(strategy.lines) == 3
    return strategy


def served(brier: float, rows: int = 100) -> JuryScores:
    return JuryScores(rows, (0.0,) * 4, (0.0, 0.0, 0.0, brier * rows))


def test_a_single_client_in_training_moves_the_line_by_its_whole_delta() -> None:
    strategy = concerto(4)
    hand_in(strategy, order_of(strategy, 0), NORTH)
    assert torch.equal(strategy.model.weights, NORTH)


def test_with_m_in_training_an_update_counts_rho_of_m_and_less_the_staler_it_is() -> None:
    strategy = concerto(8, rho=2.0)
    orders = [order_of(strategy, client) for client in range(4)]
    hand_in(strategy, orders[0], NORTH)
    assert strategy.model.weights[0] == pytest.approx(2 / 4)
    hand_in(strategy, orders[1], NORTH)  # three are in training, one version has passed
    assert strategy.model.weights[0] == pytest.approx(2 / 4 + 2 / 3 * (1 + 1 / 3) ** -0.5)


def test_the_line_branches_when_clients_pull_apart_clearly() -> None:
    strategy = branched()
    assert {strategy.home[client] for client in (0, 2, 4, 6)} != {strategy.home[client] for client in (1, 3, 5, 7)}
    (split,) = strategy.splits()
    assert sorted(map(sorted, split.members)) == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert split.why["eigengap"] >= strategy.gap
    for number in split.parts:
        assert torch.equal(strategy.lines[number].weights, strategy.model.weights)


def test_the_line_does_not_branch_where_clients_pull_alike_or_in_groups_that_are_too_small() -> None:
    alike, small = concerto(), concerto(smallest=4)
    for strategy, pulls in ((alike, [NORTH] * 8), (small, [NORTH] * 5 + [SOUTH] * 3)):
        for order, pull in zip([order_of(strategy, client) for client in range(8)], pulls, strict=True):
            hand_in(strategy, order, pull)
        assert list(strategy.lines) == [ALL]


def test_an_update_from_a_branch_moves_the_branch_and_everybodys_line() -> None:
    strategy = branched()
    home = strategy.home[0]
    before = {number: line.weights.clone() for number, line in strategy.lines.items()}
    hand_in(strategy, order_of(strategy, 0), NORTH)
    moved = {number: not torch.equal(line.weights, before[number]) for number, line in strategy.lines.items()}
    assert moved == {number: number in (ALL, home) for number in strategy.lines}


def test_a_client_starts_from_its_line_alone_in_its_first_tasks_and_in_the_first_with_a_new_branch() -> None:
    strategy = concerto(8, coverage=1.0)
    assert [rehearses(strategy, 0) for _ in range(REHEARSALS + 1)] == [True] * REHEARSALS + [False]
    for client in range(1, 8):
        rehearses(strategy, client)
    assert len(strategy.lines) == 3
    assert [rehearses(strategy, 0) for _ in range(REHEARSALS + 1)] == [True] * REHEARSALS + [False]
    strategy.forget(0)
    assert rehearses(strategy, 0)


def test_a_task_that_is_not_handed_in_is_no_rehearsal() -> None:
    strategy = concerto(8)
    for _ in range(REHEARSALS):
        order_of(strategy, 0)
    assert rehearses(strategy, 0)


def rehearses(strategy: Concerto, client: int) -> bool:
    """Does the client's next task start from the served model alone?"""
    order = order_of(strategy, client)
    hand_in(strategy, order, SOUTH if client % 2 else NORTH)
    return order.personal is not None and TUTTI in order.personal.parameters


def test_a_newcomer_goes_to_the_branch_whose_members_pulled_as_it_does() -> None:
    strategy = branched()
    strategy.joined(8, 2.0)
    order = order_of(strategy, 8)
    assert torch.equal(order.weights, strategy.model.weights)
    hand_in(strategy, order, SOUTH * 0.1)
    assert strategy.home[8] == strategy.home[1]
    assert [rehearses(strategy, 8) for _ in range(REHEARSALS + 1)] == [True] * REHEARSALS + [False]


def test_a_client_whose_error_jumps_chooses_its_branch_anew() -> None:
    strategy = branched()
    hand_in(strategy, order_of(strategy, 0), NORTH, served(0.1))
    hand_in(strategy, order_of(strategy, 0), NORTH, served(0.3))  # .3 < .1 + .25 + 100^-1/2
    assert 0 in strategy.home
    assert strategy.levels.levels[0] == pytest.approx(0.7 * 0.1 + 0.3 * 0.3)
    hand_in(strategy, order_of(strategy, 0), NORTH, served(0.16 + 0.25 + 0.1 + 0.01))
    assert 0 not in strategy.home
    order = order_of(strategy, 0)
    assert order.candidates is not None
    assert len(order.candidates.models) == 2
    other = strategy.home[1]
    hand_in(strategy, order, SOUTH, chosen=other - 1)
    assert strategy.home[0] == other
    assert order_of(strategy, 0).candidates is None


def test_an_error_on_everybodys_line_makes_nobody_lost() -> None:
    strategy = concerto(8)
    hand_in(strategy, order_of(strategy, 0), NORTH, served(0.0))
    hand_in(strategy, order_of(strategy, 0), NORTH, served(1.0))
    assert not strategy.lost


def test_what_is_held_back_moves_nothing_but_says_where_its_client_belongs() -> None:
    strategy = branched()
    strategy.joined(8, 2.0)
    order = order_of(strategy, 8)
    before = {number: line.weights.clone() for number, line in strategy.lines.items()}
    strategy.observed(update(8, order.version, order.weights, order.weights + SOUTH), 2.0)
    assert strategy.home[8] == strategy.home[1]
    assert all(torch.equal(line.weights, before[number]) for number, line in strategy.lines.items())


def test_a_client_that_is_forgotten_is_a_newcomer() -> None:
    strategy = branched()
    list(strategy.left(0, 2.0) or ())
    strategy.forget(0)
    assert 0 not in strategy.home
    assert torch.equal(strategy.model_for(0), strategy.model.weights)


@pytest.mark.parametrize("seed", [0, 1])
def test_planted_groups_are_found_and_clients_are_better_off_than_alone(seed: int) -> None:
    world = {"clients": 12, "partition": "groups:3", "seed": seed, "updates": 360, "steps": 12}
    found, alone = simulate("concerto", **world), simulate("standalone", **world)
    assert found.ari == 1.0
    assert found.accuracy_used > alone.accuracy_used


def test_nothing_branches_where_there_are_no_groups() -> None:
    assert simulate("concerto", clients=12, partition="iid", updates=120, steps=6).clusters == 1
