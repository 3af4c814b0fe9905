"""Who is better off than alone: a paired exact test on every client's own test rows."""

import itertools
import re
from math import comb

import numpy as np
import pytest

from polytempo.report.facts.alone import (
    Shares,
    better_off,
    compared,
    p_of_counts,
    p_of_losses,
    remarks,
    share_better_off,
    share_worse_off,
)
from polytempo.report.facts.contenders import contenders_of
from polytempo.report.page import page
from polytempo.report.run import Run
from polytempo.report.table import comparison_figures, comparison_rows
from support.runs import made_run, used_rows
from support.synthetic_runs import simple_run

THAN_ALONE = "better / equal / worse than alone %"


def run_with(strategy: str, rows: list[list[float]], seed: int = 0, checksums: list[int] | None = None) -> Run:
    """A run of which only what its clients' models do on test rows is known."""
    accuracies = [float(np.mean(one)) for one in rows]
    config = {"strategy": strategy, "seed": seed, "data": "digits", "clients": len(rows)}
    figures = {"strategy": strategy, "seed": seed, "accuracy": float(np.mean(accuracies))}
    evaluations = [{"time": 1.0, "updates": 1, "per_client": accuracies, "per_client_used": accuracies}]
    return made_run(config, figures, evaluations, used=used_rows(rows, checksums))


def verdicts(mine: list[list[float]], alone: list[list[float]]) -> list[int]:
    comparison = compared(run_with("fedavg", mine), run_with("standalone", alone))
    assert comparison is not None
    return comparison.verdicts.tolist()


@pytest.mark.parametrize(
    ("won", "lost", "p"),
    [
        (5, 0, 1 / 32),
        (4, 0, 1 / 16),
        (0, 0, 1.0),
        (0, 5, 1.0),
        (8, 1, 10 / 512),
        (7, 1, 9 / 256),
        (6, 1, 8 / 128),
        (3, 3, (20 + 15 + 6 + 1) / 64),
    ],
)
def test_the_test_counts_coins_that_fall_at_least_so_well(won: int, lost: int, p: float) -> None:
    assert float(p_of_counts(np.array(won), np.array(lost))) == pytest.approx(p)


def test_the_test_is_exact_for_all_small_counts() -> None:
    for won, lost in itertools.product(range(12), repeat=2):
        n = won + lost
        tail = sum(comb(n, k) for k in range(won, n + 1)) / 2**n
        assert float(p_of_counts(np.array(won), np.array(lost))) == pytest.approx(tail, rel=1e-12)


def test_five_of_five_rows_that_differ_decide_and_four_of_four_do_not() -> None:
    alone = [[0] * 5 + [1] * 5, [0] * 4 + [1] * 6, [1] * 5 + [0] * 5, [1] * 4 + [0] * 6]
    mine = [[1] * 10, [1] * 10, [0] * 10, [0] * 10]
    assert verdicts(mine, alone) == [1, 0, -1, 0]


def test_rows_on_which_both_are_right_or_both_wrong_say_nothing() -> None:
    same = [[0, 1] * 50]
    assert verdicts(same, same) == [0]
    assert verdicts([[1] * 5 + [0, 1] * 500], [[0] * 5 + [0, 1] * 500]) == [1]


def test_as_many_rows_won_as_lost_are_a_tie() -> None:
    assert verdicts([[1] * 30 + [0] * 30], [[0] * 30 + [1] * 30]) == [0]


def test_losses_are_compared_by_their_signed_ranks() -> None:
    alone = [[1.5, 2.5, 3.5, 4.5, 5.5]] * 4
    lower, mixed = [1.4, 2.3, 3.2, 4.1, 5.0], [1.4, 2.7, 3.2, 4.9, 5.0]
    higher = [1.6, 2.7, 3.8, 4.9, 6.0]
    assert verdicts([lower, mixed, higher, alone[0]], alone) == [1, 0, -1, 0]


def test_wilcoxon_of_five_lower_losses_is_one_in_32() -> None:
    higher = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    lower = higher - [0.1, 0.2, 0.3, 0.4, 0.5]
    assert p_of_losses(lower, higher) == pytest.approx(1 / 32)
    assert p_of_losses(higher, lower) == pytest.approx(1.0)
    assert p_of_losses(np.append(lower, 7.0), np.append(higher, 7.0)) == pytest.approx(1 / 32)  # a tie says nothing
    assert p_of_losses(higher, higher) == 1.0


def test_a_client_with_other_test_rows_is_left_out_and_counted() -> None:
    alone = run_with("standalone", [[0] * 5, [0] * 5, [0] * 5], checksums=[1, 2, 3])
    fedavg = run_with("fedavg", [[1] * 5, [1] * 5, [1] * 6], checksums=[1, 9, 3])
    comparison = compared(fedavg, alone)
    assert comparison is not None
    assert (comparison.clients.tolist(), comparison.left_out) == ([0], 2)
    assert comparison.shares() == Shares(1, 0, 0)
    (remark,) = remarks([alone, fedavg])
    assert remark.startswith("2 clients left out")
    assert "2 clients left out" in page([alone, fedavg], "drift")


def test_where_no_client_has_test_rows_in_common_there_is_nothing_to_say() -> None:
    alone = run_with("standalone", [[0] * 5], checksums=[1])
    fedavg = run_with("fedavg", [[1] * 5], checksums=[2])
    assert share_better_off(fedavg, alone) is None
    assert better_off(contenders_of([fedavg])[0], [alone, fedavg]) is None
    assert THAN_ALONE not in comparison_rows([alone, fedavg])[0].cells
    assert "Better off than alone?" in page([alone, fedavg], "nobody")


def test_runs_of_an_older_version_are_not_compared_and_a_sentence_says_so() -> None:
    alone, fedavg = run_with("standalone", [[0] * 5]), run_with("fedavg", [[1] * 5])
    older = made_run(fedavg.config, fedavg.result, fedavg.evaluations)
    assert compared(older, alone) is None
    assert comparison_figures([alone, older])["fedavg"]["better_off"] is None
    assert THAN_ALONE not in comparison_rows([alone, older])[0].cells
    (remark,) = remarks([alone, older])
    assert "of fedavg" in remark
    assert "older version" in remark
    assert "older version" in page([alone, older], "older")


def test_rows_right_and_losses_are_not_compared() -> None:
    alone, fedavg = run_with("standalone", [[0] * 5]), run_with("fedavg", [[0.5] * 5])
    assert compared(fedavg, alone) is None


def test_shares_are_means_over_seeds() -> None:
    runs = [
        *(run_with("standalone", [[0] * 5, [0] * 5], seed) for seed in (0, 1)),
        run_with("fedavg", [[1] * 5, [0] * 5], 0),
        run_with("fedavg", [[1] * 5, [1] * 5], 1),
    ]
    assert better_off(contenders_of(runs)[1], runs) == Shares(0.75, 0.25, 0.0)
    assert share_better_off(runs[2], runs[0]) == 0.5
    assert share_better_off(runs[0], runs[0]) is None
    assert share_worse_off(runs[0], runs[2]) is None
    assert share_worse_off(run_with("fedavg", [[0] * 5, [0] * 5]), run_with("standalone", [[1] * 5, [0] * 5])) == 0.5


def test_scripts_get_the_accuracies_and_shares_of_each_method() -> None:
    runs = [simple_run("standalone", [0.5, 0.5]), simple_run("fedavg", [0.7, 0.4])]
    found = comparison_figures(runs)
    assert list(found) == ["standalone", "fedavg"]
    assert found["fedavg"] == {
        "accuracy": pytest.approx(0.55),
        "accuracy_trained": None,
        "accuracy_used": None,
        "better_off": 0.5,
        "equal": 0.0,
        "worse_off": 0.5,
        "against_best": None,
    }
    assert [found["standalone"][name] for name in ("better_off", "equal", "worse_off")] == [0, 1, 0]
    assert comparison_figures(runs[1:])["fedavg"]["worse_off"] is None


def test_a_standalone_that_was_trained_in_another_way_is_said_to_be() -> None:
    alone, fedavg = run_with("standalone", [[0] * 5]), run_with("fedavg", [[1] * 5])
    assert remarks([alone, fedavg]) == []
    other = made_run({**alone.config, "lr": 0.5, "updates": 6}, alone.result, alone.evaluations, used=alone.used)
    (remark,) = remarks([other, fedavg])
    assert remark.startswith("standalone was not trained as the others were (other lr, updates)")
    assert remarks([alone, other, fedavg]) == []  # of two, the one that was


def test_alone_again_stands_in_table_and_page_as_what_chance_does() -> None:
    levels = {"standalone": 0.5, "standalone-again": 0.6, "casa": 0.6, "pace": 0.5}
    every = [simple_run(name, [a] * 4, seed) for name, a in levels.items() for seed in range(6)]
    cells = [row.cells[THAN_ALONE] for row in comparison_rows(every)]
    both = "100.0 / 0.0 / 0.0"
    assert [(cell.text, cell.best) for cell in cells[1:3]] == [(both, False), (both, True)]
    runs = [run for run in every if run.seed == 0]
    assert any("chance" in remark for remark in remarks(runs))
    text = page(runs, "again")
    assert "standalone-again</span>: what chance does" in text or "standalone-again: what chance does" in text
    assert "4 / 0 / 0" in text


def test_the_page_lists_every_client_with_its_three_accuracies_from_the_least_gain() -> None:
    runs = [simple_run("standalone", [0.5, 0.6]), simple_run("fedavg", [0.4, 0.9])]
    evaluations = [
        {"time": 1.0, "updates": 1, "per_client": [0.3, 0.8], "per_client_trained": [0.2, 0.7]}
        | {"per_client_used": [0.4, 0.9]}
    ]
    runs[1] = made_run(runs[1].config, runs[1].result, evaluations, used=runs[1].used)
    rows = re.findall(r"<tr><th>(\d+)</th>(.*?)</tr>", page(runs, "clients"))
    cells = [(client, re.findall("<td>(.*?)</td>", row)) for client, row in rows]
    assert ("0", ["30.0", "20.0", "40.0", "50.0", "-10.0", "worse", ""]) in cells
    assert ("1", ["80.0", "70.0", "90.0", "60.0", "+30.0", "better", ""]) in cells
    assert cells.index(("0", cells[0][1])) < cells.index(("1", cells[1][1]))
