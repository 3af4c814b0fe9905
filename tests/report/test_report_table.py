"""The table of a report: runs are grouped into methods, and methods compared."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from polytempo.core.errors import UserError
from polytempo.report.facts.alone import Shares, better_off
from polytempo.report.facts.contenders import contenders_of
from polytempo.report.page import page
from polytempo.report.run import Run
from polytempo.report.table import comparison_rows, markdown_table, rich_table
from polytempo.sim.result import Result
from polytempo.strategies import RECONSTRUCTED
from polytempo.strategies.methods.casa import Casa
from support.runs import made_run
from support.synthetic_runs import SHAPES, simple_run, synthetic_run

REFUSED = Result.refused.title
THAN_ALONE = "better / equal / worse than alone %"


def test_a_reconstructed_method_is_called_so(monkeypatch):
    monkeypatch.setitem(SHAPES, "asafl", (0.8, 300))
    runs = [synthetic_run("asafl", parameters={"mixing": mixing}) for mixing in (0.01, 0.6)]
    assert [contender.label for contender in contenders_of(runs[:1])] == ["asafl (reconstructed)"]
    labels = ["asafl (reconstructed, mixing 0.01)", "asafl (reconstructed, mixing 0.6)"]
    assert [contender.label for contender in contenders_of(runs)] == labels


def test_runs_that_differ_by_their_preset_are_told_apart_by_its_name_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(SHAPES, "casa", (0.8, 300))

    def labels(**more: object) -> list[str]:
        chosen = [{"preset": "ours"}, {"preset": "paper", **more}]
        runs = [synthetic_run("casa", parameters=dict(Casa(**given).parameters())) for given in chosen]  # type: ignore[arg-type]
        return [contender.label for contender in contenders_of(runs)]

    assert labels() == ["casa (preset ours)", "casa (preset paper)"]
    assert labels(gamma=0.3) == ["casa (gamma 0.15, preset ours)", "casa (gamma 0.3, preset paper)"]


def test_a_preset_of_another_version_is_named_with_all_it_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, "casa", (0.8, 300))
    used = [dict(Casa().parameters()), {**Casa().parameters(), "preset": "gone", "memory": 0.5}]
    contenders = contenders_of([synthetic_run("casa", parameters=given) for given in used])
    assert [one.label for one in contenders] == ["casa (memory 1, preset ours)", "casa (memory 0.5, preset gone)"]


def test_table_and_page_warn_of_reconstructed_methods_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, "asafl", (0.8, 300))

    def printed(runs: list[Run]) -> str:
        console = Console(file=io.StringIO(), width=200)
        console.print(rich_table(runs, 200))
        return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]

    built, known = [synthetic_run("asafl")], [synthetic_run("fedasync")]
    assert (RECONSTRUCTED in printed(built), RECONSTRUCTED in printed(known)) == (True, False)
    assert (RECONSTRUCTED in page(built, "one"), RECONSTRUCTED in page(known, "one")) == (True, False)


def test_seeds_are_one_method_and_settings_tell_methods_of_one_strategy_apart() -> None:
    runs = [synthetic_run(seed=seed, updates=5, parameters={"mixing": m}) for m in (0.3, 0.9) for seed in (0, 1)]
    contenders = contenders_of(runs)
    assert [contender.label for contender in contenders] == ["fedasync (mixing 0.3)", "fedasync (mixing 0.9)"]
    assert [len(contender.runs) for contender in contenders] == [2, 2]
    assert contenders[0].colour != contenders[1].colour


def test_what_does_not_change_the_result_does_not_split_a_method() -> None:
    runs = [
        synthetic_run(seed=seed, updates=5, files={"a": str(seed)}, resolved={"workers": seed + 1}) for seed in range(3)
    ]
    assert len(contenders_of(runs)) == 1


@pytest.mark.parametrize("files", [("a/slow.toml", "b/fast.toml"), ("a/same.toml", "b/same.toml")])
def test_a_file_is_shown_by_its_name_unless_another_has_the_same(files: tuple[str, str], tmp_path: Path) -> None:
    paths = [str(tmp_path / file) for file in files]
    runs = [simple_run("fedavg", [0.5], devices=path, files={path: "digest"}) for path in paths]
    shown = paths if "same" in files[0] else ["slow.toml", "fast.toml"]
    assert [contender.label for contender in contenders_of(runs)] == [f"fedavg (devices {file})" for file in shown]
    text = page(runs, "two")
    assert re.findall("<mark>(.*?)</mark>", text) == shown
    assert (str(tmp_path) in text) == ("same" in files[0])
    assert f"· devices {Path(files[0]).name}<" in page([runs[0]], "one")


def test_a_parameter_that_was_left_open_is_shown_as_what_was_used() -> None:
    parameters = {"q_max": None, "q_min": 7, "budget": None}
    run = simple_run("fedcompass", [0.5], parameters=parameters, resolved={"q_max": 50, "q_min": 10, "updates": 9})
    assert "budget none, q max 50, q min 7" in page([run], "one")
    given = simple_run("fedcompass", [0.5], 1, parameters=parameters | {"q_max": 50})
    assert len(contenders_of([run, given])) == 1


def test_better_equal_and_worse_are_counted_against_standalone_of_the_same_seed() -> None:
    runs = [
        simple_run("standalone", [0.5, 0.5, 0.5, 0.5], seed=0),
        simple_run("standalone", [0.9, 0.9, 0.9, None], seed=1),
        simple_run("fedavg", [0.6, 0.5, 0.4, 0.7], seed=0),  # better, equal, worse, better
        simple_run("fedavg", [0.8, 0.95, 0.9, 0.9], seed=1),  # worse, better, equal, not known
    ]
    alone, fedavg = contenders_of(runs)
    shares = better_off(fedavg, runs)
    assert shares is not None
    assert (shares.better, shares.equal, shares.worse) == pytest.approx((10 / 24, 7 / 24, 7 / 24))
    assert better_off(alone, runs) == Shares(0, 1, 0)


def test_standalone_of_another_world_is_no_comparison() -> None:
    runs = [simple_run("standalone", [0.5]), simple_run("fedavg", [0.6], data="mnist"), simple_run("fedbuff", [0.6], 7)]
    assert [better_off(contender, runs) for contender in contenders_of(runs)[1:]] == [None, None]
    assert THAN_ALONE not in comparison_rows(runs)[0].cells


def test_the_table_says_how_many_are_better_equally_well_and_worse_off_than_alone() -> None:
    runs = [
        simple_run(name, accuracies, seed)
        for name, accuracies in (
            ("standalone", [0.5, 0.5, 0.5, 0.5]),
            ("fedavg", [0.6, 0.7, 0.3, 0.4]),
            ("fedbuff", [0.6, 0.5, 0.5, 0.5]),
        )
        for seed in range(6)
    ]
    cells = [row.cells[THAN_ALONE] for row in comparison_rows(runs)]
    assert [cell.text for cell in cells] == ["–", "50.0 / 0.0 / 50.0", "25.0 / 75.0 / 0.0"]
    assert [cell.best for cell in cells] == [False, False, True]


def test_refused_updates_are_in_table_and_page_where_there_are_some() -> None:
    runs = [simple_run("fedavg", [0.5]), simple_run("fedbuff", [0.5])]
    assert REFUSED not in comparison_rows(runs)[0].cells
    figures = {**runs[1].result, "refused": 7}
    runs = [made_run(runs[0].config, {**runs[0].result, "refused": 0}), made_run(runs[1].config, figures)]
    assert [row.cells[REFUSED].text for row in comparison_rows(runs)] == ["0", "7"]
    assert "training diverges" in page(runs, "one diverges")


def test_the_table_gives_mean_and_deviation_over_seeds() -> None:
    runs = [simple_run("fedavg", [a], seed) for seed, a in enumerate((0.5, 0.6, 0.7))] + [simple_run("fedbuff", [0.55])]
    fedavg, fedbuff = comparison_rows(runs)
    assert (fedavg.cells["served %"].text, fedbuff.cells["served %"].text) == ("60.0 ± 10.0", "55.0")


@pytest.mark.parametrize(("seeds", "marked"), [(1, False), (5, False), (6, True)])
def test_the_best_is_marked_where_the_seeds_show_that_it_is_better(seeds: int, marked: bool) -> None:
    runs = [simple_run(name, [a], seed) for name, a in (("fedavg", 0.7), ("fedbuff", 0.5)) for seed in range(seeds)]
    assert [row.cells["served %"].best for row in comparison_rows(runs)] == [marked, False]
    assert ("| fedavg | **70.0 ± 0.0** |" in markdown_table(runs)) is marked


def test_a_best_that_is_not_better_than_all_others_is_not_marked() -> None:
    close = [simple_run("fedbuff", [0.71 - 0.04 * (seed % 2)], seed) for seed in range(6)]
    runs = [simple_run(name, [a], seed) for name, a in (("fedavg", 0.7), ("fedasync", 0.5)) for seed in range(6)]
    assert not any(row.cells["served %"].best for row in comparison_rows([*runs, *close]))


def test_time_to_target_says_how_many_seeds_reached_it_and_the_lowest_is_best() -> None:
    times = {"fedavg": [None] * 6, "fedasync": [10.0] + [None] * 5, "fedbuff": [20.0, 22.0] * 3, "pace": [30.0] * 6}
    runs = [simple_run(name, [0.5], seed, target=0.4) for name in times for seed in range(6)]
    runs = [made_run(run.config, {**run.result, "time_to_target": times[run.strategy][run.seed]}) for run in runs]

    def cells(*names: str) -> list[tuple[str, bool]]:
        rows = comparison_rows([run for run in runs if run.strategy in names])
        return [(row.cells["time to target s"].text, row.cells["time to target s"].best) for row in rows]

    assert cells("fedavg", "fedbuff", "pace") == [("not reached", False), ("21.0", True), ("30.0", False)]
    assert cells("fedasync", "fedbuff") == [("10.0 (1 of 6)", False), ("21.0", False)]


def test_a_column_that_nobody_has_is_left_out() -> None:
    (row,) = comparison_rows([simple_run("fedavg", [0.5])])
    assert list(row.cells) == ["served %"]


@pytest.mark.parametrize("width", [80, 100, 200])
def test_the_terminal_table_fits_and_cuts_nothing(several: list[Run], width: int) -> None:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(rich_table(several, width))
    text = console.export_text()
    assert all(len(line.rstrip()) <= width for line in text.splitlines())
    assert "…" not in text
    assert all(strategy in text for strategy in SHAPES)


@pytest.mark.parametrize("width", [60, 80, 100])
def test_ten_methods_in_a_narrow_terminal_stand_together_in_tables_that_cut_nothing(width: int) -> None:
    runs = [
        synthetic_run("fedasync", seed, 6, 30, parameters={"mixing": m / 16}) for m in range(1, 11) for seed in (0, 1)
    ]
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(rich_table(runs, width))
    text = console.export_text()
    assert "…" not in text
    assert all(len(line.rstrip()) <= width for line in text.splitlines())
    tables = text.partition("Used accuracy against")[0].split("method")[1:]
    assert len(tables) > 1
    assert all(table.count(f"(mixing {m / 16})") == 1 for table in tables for m in range(1, 11))
    rows = comparison_rows(runs)
    assert [found.strip() for found in re.findall(r"[\d.]+ ± [\d.]+", text)] == [r.cells["served %"].text for r in rows]
    assert all(word in text for title in rows[0].cells for word in title.split())


def test_no_runs_is_an_error() -> None:
    with pytest.raises(UserError, match="no runs"):
        comparison_rows([])
