"""Whether a difference is real: exact tests against hand computation and scipy."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from polytempo.report.differences import differences, notes
from polytempo.report.facts.significance import (
    DRAWS,
    bootstrap_interval,
    holm,
    seeds_needed,
    sign_flip_p,
    t_interval,
)
from polytempo.report.page import page
from polytempo.report.run import Run
from polytempo.report.table import comparison_figures
from polytempo_client.streams import stream
from support.runs import made_run, used_rows


def run_with(strategy: str, accuracy: float, seed: int, rows: list[list[float]] | None = None, **config: object) -> Run:
    """A run of which only the mean used accuracy is known, and, if given, its clients' test rows."""
    world = {"strategy": strategy, "seed": seed, "data": "digits", **config}
    figures = {"strategy": strategy, "seed": seed, "accuracy": accuracy, "accuracy_used": accuracy}
    clients = [] if rows is None else [float(np.mean(one)) for one in rows]
    evaluations = [{"time": 1.0, "updates": 1, "per_client": clients, "per_client_used": clients}] if rows else []
    return made_run(world, figures, evaluations, used=None if rows is None else used_rows(rows))


def runs_of(**accuracies: list[float]) -> list[Run]:
    return [run_with(name, a, seed) for name, each in accuracies.items() for seed, a in enumerate(each)]


@pytest.mark.parametrize(
    ("values", "p"),
    [
        ([1, 2], 2 / 4),
        ([1, 2, 3], 2 / 8),
        ([1, 2, 3, 4, 5, 6], 2 / 64),
        ([-1, 2, 3], 4 / 8),  # sums at least 4 from 0: 6, 4, -4, -6
        ([1, 1, -1], 8 / 8),
        ([0, 0, 5], 1.0),
        ([0, 0, 0], 1.0),
        ([0.1, 0.2, -0.3], 1.0),  # a sum of 0, but for rounding
    ],
)
def test_the_sign_flip_test_counts_the_signs(values: list[float], p: float) -> None:
    assert sign_flip_p(np.array(values)) == pytest.approx(p)


def test_the_sign_flip_test_is_that_of_scipy() -> None:
    draw = stream(3, "significance in tests")
    for seeds in range(2, 11):
        values = draw.normal(0.4, 1, seeds).round(1)
        known = stats.permutation_test(
            (values,), np.mean, permutation_type="samples", n_resamples=np.inf, vectorized=True, axis=0
        )
        assert sign_flip_p(values) == pytest.approx(known.pvalue, rel=1e-12)


def test_many_seeds_are_counted_in_halves_and_very_many_are_drawn() -> None:
    values = np.array([1.0] * 20)
    assert sign_flip_p(values) == pytest.approx(2 / 2**20)
    mixed = np.array([1.0] * 22 + [-1.0] * 8)
    assert sign_flip_p(mixed) == pytest.approx(stats.binomtest(22, 30).pvalue)
    assert sign_flip_p(np.ones(40)) == pytest.approx(1 / (1 + DRAWS))


def test_one_seed_is_no_test() -> None:
    assert math.isnan(sign_flip_p(np.array([0.3])))
    assert math.isnan(t_interval(np.array([0.3]))[0])


def test_holm_multiplies_by_the_tests_that_are_left_and_never_goes_down() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, math.nan, 0.02])[0::2] == pytest.approx([0.5, 0.04])
    assert holm([]) == []


def test_the_bootstrap_of_two_seeds_reaches_from_one_to_the_other() -> None:
    assert bootstrap_interval(np.array([0.1, 0.3])) == pytest.approx((0.1, 0.3))


def test_the_bootstrap_is_about_that_of_scipy_further_out() -> None:
    values = stream(5, "significance in tests").normal(1, 1, 12)
    tail = stats.norm.sf(math.sqrt(12 / 11) * stats.t.isf(0.025, 11))
    known = stats.bootstrap((values,), np.mean, confidence_level=1 - 2 * tail, method="percentile", rng=0)
    assert bootstrap_interval(values) == pytest.approx(tuple(known.confidence_interval), abs=0.05)
    assert bootstrap_interval(values) == bootstrap_interval(values)


def test_the_t_interval_is_that_of_scipy() -> None:
    values = np.array([0.8, 0.9, 0.7])
    assert t_interval(values) == pytest.approx(stats.t.interval(0.95, 2, values.mean(), stats.sem(values)))
    assert t_interval(values)[0] == pytest.approx(0.8 - 4.30265 * 0.1 / math.sqrt(3), abs=1e-6)


@pytest.mark.parametrize(
    ("mean", "deviation", "level", "seeds"),
    [
        (0.5, 1.0, 0.05, 34),  # as in tables of power: 34 pairs for an effect of 0.5
        (0.8, 1.0, 0.05, 15),
        (-0.8, 1.0, 0.05, 15),
        (1.0, 1.0, 0.05, 10),
        (100.0, 1.0, 0.05, 6),  # fewer cannot reach 5 % with signs alone
        (1.0, 0.0, 0.05, 6),
        (1.0, 0.0, 0.05 / 3, 7),
        (0.0, 1.0, 0.05, None),
        (0.01, 1.0, 0.05, None),
    ],
)
def test_the_seeds_needed_are_those_of_the_paired_t_test(
    mean: float, deviation: float, level: float, seeds: int | None
) -> None:
    assert seeds_needed(mean, deviation, level) == seeds


def test_the_best_is_compared_with_every_other_seed_by_seed() -> None:
    best = [0.90, 0.92, 0.94, 0.91, 0.93, 0.95, 0.90, 0.92]
    runs = runs_of(pace=[a - 0.05 - 0.001 * i for i, a in enumerate(best)], fedbuff=best, fedavg=best[::-1])
    pace, fedavg = differences(runs)
    assert (pace.contender, pace.reference, pace.seeds) == ("pace", "fedbuff", 8)
    assert pace.mean == pytest.approx(-0.0535)
    assert pace.low < -0.0535 < pace.high < -0.05
    assert pace.p == pytest.approx(3 * 2 / 2**8)  # the smallest of three pairs
    assert pace.verdict == "worse"
    assert (fedavg.p, fedavg.verdict, fedavg.seeds_needed) == (1.0, "not shown", None)


def test_only_seeds_that_both_have_in_the_same_world_are_paired() -> None:
    runs = [
        *runs_of(fedbuff=[0.9, 0.8, 0.7]),
        run_with("fedavg", 0.5, 1),
        run_with("fedavg", 0.6, 2),
        run_with("fedavg", 0.6, 7),
    ]
    (fedavg,) = differences(runs)
    assert (fedavg.seeds, fedavg.mean) == (2, pytest.approx(-0.2))
    (other,) = differences([run_with("fedbuff", 0.9, 0), run_with("fedavg", 0.5, 0, data="mnist")])
    assert (other.seeds, other.verdict) == (0, "no pair")


def test_one_seed_says_plainly_that_nothing_can_be_said() -> None:
    runs = runs_of(fedbuff=[0.9], fedavg=[0.1])
    (fedavg,) = differences(runs)
    assert (fedavg.verdict, fedavg.seeds_needed, math.isnan(fedavg.p)) == ("one seed", None, True)
    assert "One seed: nothing can be said across seeds" in page(runs, "one")


def test_too_few_seeds_for_so_many_methods_are_said_to_be() -> None:
    def said(methods: int, seeds: int) -> list[str]:
        names = ("fedbuff", "fedavg", "pace")[:methods]
        return notes(differences(runs_of(**{name: [0.9 - 0.1 * i] * seeds for i, name in enumerate(names)})))

    assert "With 3 seeds and 2 methods no difference can be shown" in said(2, 3)[1]
    assert "at least 6 seeds" in said(2, 5)[1]
    assert "at least 7 seeds" in said(3, 6)[1]
    assert [len(said(2, 6)), len(said(3, 7))] == [1, 1]


def test_clients_are_counted_by_the_test_on_their_rows_over_all_seeds() -> None:
    good, bad = [1.0] * 10, [0.0] * 10
    runs = [run_with("fedbuff", 0.9, seed, [good, good, bad]) for seed in range(2)]
    runs += [run_with("fedavg", 0.5, seed, [bad, good, good]) for seed in range(2)]
    assert differences(runs)[0].clients == (2, 2, 2)


def test_no_difference_is_shown_more_often_than_the_level_where_there_is_none() -> None:
    draw = stream(7, "significance in tests")
    found = 0
    for _ in range(200):
        runs = runs_of(**{name: draw.normal(0.8, 0.02, 8).tolist() for name in ("fedavg", "fedbuff", "pace")})
        found += any(each.verdict != "not shown" for each in differences(runs))
    assert found <= 18  # 5 % of 200 are 10; more than 18 has a probability below 1 %


def test_scripts_get_the_differences_too() -> None:
    found = comparison_figures(runs_of(fedbuff=[0.9] * 6, fedavg=[0.1] * 6))
    assert found["fedbuff"]["against_best"] is None
    told = found["fedavg"]["against_best"]
    assert isinstance(told, dict)
    assert (told["reference"], told["verdict"], told["seeds"]) == ("fedbuff", "worse", 6)
    one = comparison_figures(runs_of(fedbuff=[0.9], fedavg=[0.1]))["fedavg"]["against_best"]
    assert isinstance(one, dict)
    assert one["p"] is None


def test_every_pattern_of_signs_is_counted_once() -> None:
    values = np.array([0.3, -0.1, 0.4, 0.15, 0.22])
    sums = [float(np.dot(signs, values)) for signs in itertools.product((-1, 1), repeat=5)]
    share = np.mean(np.abs(sums) >= abs(values.sum()) - 1e-12)
    assert sign_flip_p(values) == pytest.approx(float(share))
