"""The client's half of the personal rule, by hand-computed cases."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from polytempo.core.orders import Candidates, Objective, Send, Train, Work
from polytempo.learn.flat import initial_vector
from polytempo.learn.learner import Assignment, CarriedOut, Learner
from polytempo.learn.metrics import as_metric
from polytempo.learn.scoring import Scorer
from polytempo.testing import tiny_dataset
from polytempo_client.personal.jury import Rows, deal, fingerprints
from polytempo_client.personal.rule import ClientMemory, judge, keeping, mixed, outgoing, using
from polytempo_client.personal.told import SOLO, JuryScores, Personal
from support.juries import ANY, NO_JURY, after_training, floats, scores

X, Y = torch.from_numpy(tiny_dataset().x), torch.from_numpy(tiny_dataset().y)


# What the jury says.


def test_the_jury_judges_four_mixtures_of_average_and_served_model() -> None:
    memory = ClientMemory(floats(9), floats(0))
    seen = []

    def score(weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
        seen.append(weights.tolist())
        return np.stack([np.full(len(rows), float(weights[0])), np.arange(len(rows)) / 10], 1)

    said = judge(memory, floats(0.8), np.array([3, 4]), score, changed=False)
    assert np.allclose(seen, [[0], [0.2], [0.4], [0.8]])
    assert said.rows == 2
    assert said.errors == pytest.approx((0, 0.4, 0.8, 1.6))
    assert said.briers == pytest.approx((0.1,) * 4)


@pytest.mark.parametrize("error", [0.0, np.nan])
@pytest.mark.parametrize("brier", [np.nan, np.inf])
def test_a_row_for_which_a_mixture_computes_no_number_is_one_that_it_gets_wrong(error: float, brier: float) -> None:
    def score(weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return np.array([[0.0, 0.1], [error, brier]]) if weights[0] > 0 else np.full((2, 2), 0.2)

    said = judge(ANY, floats(-1), np.array([3, 4]), score)
    assert said.errors == (1.0, 1.0, 0.4, 0.4)
    assert said.briers == pytest.approx((1.1, 1.1, 0.4, 0.4))
    assert using(ANY, said, None) == 0.5


def test_an_error_and_half_a_brier_score_of_a_classifier_by_hand() -> None:
    module = nn.Sequential(nn.Linear(1, 2, bias=False))
    weights = torch.tensor([0.0, np.log(3.0)])  # at x = 1: shares 1/4 and 3/4
    x = torch.ones(2, 1)
    said = Scorer(module).judged(weights, x, torch.tensor([0, 1]), np.array([0, 1]))
    assert said[:, 0].tolist() == [1, 0]
    # (1/16 + 9/16 + 1) / 2 - share of the label
    assert said[:, 1] == pytest.approx([13 / 16 - 1 / 4, 13 / 16 - 3 / 4])


def test_with_another_loss_a_row_scores_its_share_of_the_initial_models_loss() -> None:
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, 2.0)
    scorer = Scorer(module, F.mse_loss, as_metric(lambda outputs, y: -(outputs - y).square().flatten()))
    x, y = torch.ones(3, 1), torch.tensor([[0.0], [1.0], [2.0]])
    said = scorer.judged(torch.tensor([1.0]), x, y, np.arange(3))  # losses 1, 0, 1; of the initial model 4, 1, 0
    assert said.tolist() == [[0.25, 0.25], [0, 0], [1, 1]]


# How much of its own a client keeps.


def test_a_client_keeps_twenty_times_the_square_of_what_its_own_is_better_by() -> None:
    assert keeping(scores(10, (0,) * 4, (1.0, 9, 9, 2.0)), Personal()) == pytest.approx(20 * 0.1**2)


def test_the_pool_counts_for_twenty_rows_when_a_client_decides_what_to_keep() -> None:
    pool = scores(1, (0,) * 4, (0.1, 0, 0, 0.4))
    d = (10 * 0.1 + 20 * 0.3) / 30
    assert keeping(scores(10, (0,) * 4, (1.0, 9, 9, 2.0)), Personal(pool=pool)) == pytest.approx(min(20 * d * d, 1))


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (scores(10, (0,) * 4, (0.0, 0, 0, 10.0)), 1.0),
        (scores(10, (0,) * 4, (2.0, 0, 0, 1.0)), 0.0),
        (scores(100, (0,) * 4, (0.0, 0, 0, 3.0)), 0.0),
        (scores(0, (0,) * 4, (0.0,) * 4), 0.0),
    ],
    ids=["at most all", "nothing if the served one is better", "nothing below .02", "no jury"],
)
def test_a_client_keeps(said: JuryScores, kept: float) -> None:
    assert keeping(said, Personal()) == kept


def test_a_client_that_plays_solo_keeps_all_where_it_would_keep_something() -> None:
    solo = Personal(parameters={SOLO: 1.0})
    assert keeping(scores(10, (0,) * 4, (1.0, 0, 0, 1.4)), solo) == 1.0  # 20 x .04^2 = .032
    assert keeping(scores(10, (0,) * 4, (1.0, 0, 0, 1.3)), solo) == 0.0


# What a client uses.


def test_a_client_uses_the_mixture_with_the_least_error_and_brier_score() -> None:
    assert using(ANY, scores(10, (3, 1, 2, 5), (1, 1.5, 0.4, 1)), None) == 0.5


def test_the_pool_counts_for_sixty_rows_when_a_client_decides_what_to_use() -> None:
    said = scores(10, (1, 2, 2, 2), (0,) * 4)
    pool = scores(1, (0.1, 0.1, 0.1, 0.05), (0,) * 4)
    assert using(ANY, said, None) == 0.0
    assert using(ANY, said, pool) == 1.0  # 2 + 60 x .05 against 1 + 60 x .1
    assert using(ANY, replace(said, changed=True), pool) == 0.0


def test_without_jury_and_pool_a_client_uses_its_own() -> None:
    assert using(ANY, NO_JURY, None) == 0.0


def test_a_mixture_is_exactly_one_of_both_at_its_ends_and_only_where_it_may_be() -> None:
    own, served = floats(0.1, 0.7), floats(0.3, 1.9)
    assert mixed(own, served, 0) is own
    assert mixed(own, served, 1) is served
    assert mixed(own, served, 0.5, np.array([True, False])) == pytest.approx([0.2, 0.7])


# What it hands in and remembers.


def test_a_client_hands_in_the_served_model_and_its_progress_but_buffers_as_they_are() -> None:
    trained, start, served = floats(5, 7), floats(4, 6), floats(1, 2)
    assert outgoing(trained, start, served, parameters=1).tolist() == [2, 7]


def test_a_client_remembers_its_own_model_and_an_average_of_all() -> None:
    first = after_training(None, 2, [5, 3])
    assert (first.own.tolist(), first.average.tolist(), first.known.tolist()) == ([2], [2], [3, 5])
    second = after_training(first, 4, [3, 9])
    assert (second.own.tolist(), second.average.tolist(), second.known.tolist()) == ([4], [3], [3, 5, 9])
    anew = after_training(second, 8, [1], changed=True)
    assert (anew.own.tolist(), anew.average.tolist(), anew.known.tolist()) == ([8], [8], [1])


# All of it, in one assignment.


def learner(module: nn.Module | None = None) -> Learner:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Learner(module or nn.Sequential(nn.Linear(4, 3)), "eager")


def rows_of(memory: ClientMemory | None = None) -> Rows:
    return deal(np.arange(60), fingerprints(X.numpy()), fingerprints(Y.numpy()), 3, memory)


def carried_out(made: Learner, memory: ClientMemory | None, order: Train, **more: object) -> CarriedOut:
    dealt = rows_of(memory)
    given = Assignment(order, X, Y, dealt.train, 6, 0, 0, dealt=dealt, memory=memory)
    return made.carry_out(replace(given, **more))  # type: ignore[arg-type]


def order(weights: torch.Tensor, **more: object) -> Train:
    return Train(0, weights, 4, Work(steps=6, batch_size=8, lr=0.1), personal=Personal(), **more)  # type: ignore[arg-type]


def far_from(served: torch.Tensor) -> ClientMemory:
    """Of a client whose own model is far better than a served one that is wrong everywhere."""
    good = torch.zeros_like(served)
    good[[0, 5, 10]] = 8.0  # the weights of each class for its own feature
    return ClientMemory(good.numpy(), good.numpy(), np.sort(rows_of().known))


def test_the_first_task_is_carried_out_as_if_there_were_no_rule_but_without_the_jury() -> None:
    made = learner()
    start = initial_vector(nn.Sequential(nn.Linear(4, 3)))
    done = carried_out(made, None, order(start))
    plain = made.carry_out(Assignment(replace(order(start), personal=None), X, Y, rows_of().train, 6, 0, 0))
    assert torch.equal(done.update.weights, plain.update.weights)
    assert done.update.jury is None
    assert plain.memory is None
    assert done.memory is not None
    assert done.update.samples == len(rows_of().train) < 60


def test_a_client_with_a_good_model_of_its_own_trains_that_and_hands_in_progress_from_the_served_one() -> None:
    made, served = learner(), torch.full((15,), -1.0)
    served[[0, 5, 10]] = -8.0
    memory = far_from(served)
    done = carried_out(made, memory, order(served))
    assert done.update.jury is not None
    assert done.update.jury.rows == len(rows_of().jury) > 0
    assert keeping(done.update.jury, Personal()) == 1.0
    alone = made.carry_out(Assignment(order(torch.from_numpy(memory.own)), X, Y, rows_of().train, 6, 0, 0))
    assert torch.equal(done.own, alone.update.weights)
    assert torch.equal(done.update.start, served)
    assert torch.allclose(done.update.delta, done.own - torch.from_numpy(memory.own), atol=1e-6)


def test_a_refresh_in_mid_training_is_mixed_with_its_own_and_the_update_counts_from_it() -> None:
    made, served = learner(), torch.full((15,), -1.0)
    served[[0, 5, 10]] = -8.0
    memory = far_from(served)
    fresh = served * 0.5
    done = carried_out(made, memory, order(served), sends=((3, Send(0, fresh, 9)),))
    assert (done.update.version, done.update.start.tolist()) == (9, fresh.tolist())
    again = made.carry_out(
        Assignment(
            order(torch.from_numpy(memory.own)), X, Y, rows_of().train, 6, 0, 0,
            sends=((3, Send(0, torch.from_numpy(memory.own), 9)),),
        )
    )  # fmt: skip
    assert torch.equal(done.own, again.update.weights)
    assert torch.allclose(done.update.weights, fresh + (done.own - torch.from_numpy(memory.own)), atol=1e-5)


def test_layers_that_are_not_trained_are_the_served_ones() -> None:
    made, served = learner(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3))), torch.full((27,), 0.5)
    memory = ClientMemory(np.zeros(27, np.float32), np.zeros(27, np.float32), np.sort(rows_of().known))
    pool = JuryScores(1, (0.0,) * 4, (0.0, 0, 0, 1.0))
    asked = replace(order(served, trainable=("1",)), personal=Personal(pool=pool))
    done = carried_out(made, memory, asked)
    assert torch.equal(done.own[:15], served[:15])
    assert torch.equal(done.update.weights[:15], served[:15])
    assert not torch.equal(done.update.weights[15:], served[15:])


def test_a_client_that_chooses_among_models_keeps_nothing_of_its_own() -> None:
    made, served = learner(), torch.full((15,), -1.0)
    models = (served, served * 2)
    done = carried_out(made, far_from(served), order(served, candidates=Candidates(models, (1, 2))))
    assert done.update.chosen is not None
    assert torch.equal(done.update.weights, done.own)
    assert torch.equal(done.update.start, models[done.update.chosen])


def test_terms_without_an_anchor_of_their_own_are_about_the_served_model() -> None:
    made, served = learner(), torch.full((15,), -1.0)
    served[[0, 5, 10]] = -8.0
    memory = far_from(served)
    without = carried_out(made, memory, order(served, objective=Objective(proximal=0.5)))
    anchored = carried_out(made, memory, order(served, objective=Objective(proximal=0.5, anchor=served)))
    assert torch.equal(without.own, anchored.own)


def test_a_training_that_diverges_is_not_remembered() -> None:
    made, served = learner(), torch.full((15,), torch.nan)
    assert carried_out(made, None, order(served)).memory is None


def test_an_update_of_a_model_with_batch_norm_carries_its_statistics_as_trained() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    made = learner(module)
    served = initial_vector(module)
    memory = ClientMemory(served.numpy() * 3, served.numpy() * 3, np.sort(rows_of().known))
    pool = JuryScores(1, (0.0,) * 4, (0.0, 0, 0, 1.0))
    done = carried_out(made, memory, replace(order(served), personal=Personal(pool=pool)))
    statistics = slice(made.schema.parameter_count, None)
    assert torch.equal(done.update.weights[statistics], done.own[statistics])
    assert not torch.equal(done.update.weights, done.own)
