"""How the report shows what clients that ask get for their updates."""

import io
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from rich.console import Console

from polytempo.report.drawing import exchanges
from polytempo.report.drawing.mixtures import GAP, estimated_against_true, mixture_bands
from polytempo.report.facts.contenders import contenders_of
from polytempo.report.facts.exchanges import POINTS, course, uniform_references
from polytempo.report.facts.mixtures import busiest_clients, mixtures, uniform_kl
from polytempo.report.page import page
from polytempo.report.run import Run
from polytempo.report.table import comparison_rows, rich_table
from polytempo_client.streams import stream
from support.runs import made_run, result_of

LN2 = math.log(2)


def exchange(time: float, client: int = 0, **more: Any) -> dict[str, Any]:
    nothing = {"before": None, "after": None, "mixture": None, "estimate": None, "kl": None}
    return {"time": time, "client": client, "updates": 1, "staleness": 0, **nothing, **more}


def asking_run(rows: list[dict[str, Any]], strategy: str = "cdfl", seed: int = 0, **more: Any) -> Run:
    """A run of which only its exchanges are known."""
    result = {"strategy": strategy, "seed": seed, "exchanges": len(rows), "virtual_time": rows[-1]["time"], **more}
    return made_run({"strategy": strategy, "seed": seed}, result, exchanges=rows)


def likely_run(strategy: str, seed: int = 0, clusters: int = 3, clients: int = 12, count: int = 600) -> Run:
    """A run that looks like a real one: cdfl and fedsoft-async estimate, the second one badly."""
    draw = stream(seed, f"exchanges of {strategy}")
    noise = {"cdfl": 0.25, "fedsoft-async": 1.5}.get(strategy)
    rows = []
    for i in range(count):
        true = draw.dirichlet(np.ones(clusters))
        rough = None if noise is None else (true + 0.02) * np.exp(noise * draw.normal(size=clusters))
        estimate = None if rough is None else rough / rough.sum()
        level = 0.85 * (1 - math.exp(-4 * (i + 20) / count))
        rows.append(
            exchange(
                10.0 * (i + 1),
                int(draw.integers(clients)),
                before=float(np.clip(level - 0.05 + 0.08 * draw.normal(), 0, 1)),
                after=float(np.clip(level + 0.08 * draw.normal(), 0, 1)),
                mixture=true,
                estimate=estimate,
                kl=None if estimate is None else float(np.sum(true * np.log(true / estimate))),
            )
        )
    at = np.linspace(100, 10 * count, 25)
    evaluations = []
    for time in at.tolist():
        row = {"time": time, "updates": int(time / 10), "accuracy": 0.8, "bytes_up": 40_000 * time / 10}
        evaluations.append(row | {"bytes_down": row["bytes_up"], "per_client": [0.8] * clients})
        if noise is not None:
            level = 0.9 * (1 - math.exp(-4 * time / at[-1]))
            evaluations[-1]["cluster_accuracy"] = level - 0.05 * np.arange(clusters) + 0.01 * draw.normal(size=clusters)
    last = rows[-count // 4 :]
    models = clusters if strategy == "fedsoft-async" else 1
    own = [] if noise is None else list(evaluations[-1]["cluster_accuracy"])
    result = {
        "strategy": strategy,
        "seed": seed,
        "accuracy": 0.8,
        "virtual_time": 10.0 * count,
        "updates": count,
        "exchanges": count,
        "accuracy_before": float(np.mean([row["before"] for row in last])),
        "accuracy_after": float(np.mean([row["after"] for row in last])),
        "mixture_kl": None if noise is None else float(np.mean([row["kl"] for row in last])),
        "mixture_kl_uniform": float(np.mean(uniform_kl(np.array([row["mixture"] for row in last])))),
        "cluster_accuracy": float(np.mean(own)) if own else None,
        "cluster_accuracies": own or None,
        "bytes_per_exchange": 40_200.0 * models,
        "downloads_ratio": models,
    }
    config = {"strategy": strategy, "seed": seed, "data": "digits", "clients": clients, "partition": "rotations:3"}
    return made_run(config, result, evaluations, [], exchanges=rows)


@pytest.fixture(scope="module")
def several() -> list[Run]:
    return [likely_run(strategy, seed) for strategy in ("cdfl", "fedsoft-async", "fedbuff") for seed in (0, 1)]


@pytest.fixture(scope="module")
def html(several: list[Run]) -> str:
    return page(several, "exchanges")


def section_of(html: str) -> str:
    return next(part for part in html.split("<section>") if "<h2>Exchanges</h2>" in part)


def figures_in(html: str) -> set[str]:
    """The names of the figures."""
    return set(re.findall(r'id="([a-z-]+?)-figure_1"', html))


def keys_of(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


# Runs


def test_exchanges_are_read_back_and_their_nulls_are_nan(tmp_path: Path) -> None:
    rows = [exchange(1.0, before=0.5, mixture=[0.25, 0.75]), exchange(2.0)]
    result = dict(result_of(strategy="cdfl", exchanges=2, mixture_kl=0.25))
    for name, content in (("config", {}), ("result", result)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    for name, lines in (("evaluations", []), ("updates", []), ("exchanges", rows)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    run = Run.load(tmp_path)
    np.testing.assert_equal(list(run.exchange_log), rows)
    assert isinstance(run.exchange_log[0]["mixture"], np.ndarray)
    assert run.exchange_log[1]["mixture"] is None
    np.testing.assert_equal(run.over_exchanges("before"), [0.5, np.nan])
    assert (run.exchanges, run.mixture_kl, run.accuracy_after) == (2, 0.25, None)


# What is drawn


def test_an_exchange_counts_in_the_mean_of_its_point_only_where_it_has_a_figure() -> None:
    rows = [exchange(float(i), after=i / 100) for i in range(80)] + [exchange(80.0)]
    at, accuracy = course(asking_run(rows), "after", 100)
    assert at.tolist() == accuracy.tolist() == [4.5 + 10 * i for i in range(8)]


def test_a_single_exchange_is_a_dot_and_thousands_are_a_few_points() -> None:
    alone = exchanges.accuracy_around_exchanges(contenders_of([asking_run([exchange(5.0, before=0.4, after=0.6)])]))
    lines = alone.axes[0].lines
    assert [(line.get_marker(), *line.get_ydata()) for line in lines] == [("o", 40.0), ("o", 60.0)]
    many = asking_run([exchange(float(i), after=0.5) for i in range(5_000)])
    assert len(course(many, "after")[0]) == POINTS


def test_before_is_dashed_and_after_solid_in_the_colour_of_the_method_and_seeds_are_averaged() -> None:
    runs = [
        asking_run([exchange(t, before=low, after=low + 0.2) for t in (0.0, 10.0)], seed=seed)
        for seed, low in enumerate((0.3, 0.5))
    ]
    (contender,) = contenders_of(runs)
    before, after = exchanges.accuracy_around_exchanges([contender]).axes[0].lines
    assert (before.get_linestyle(), after.get_linestyle()) == ("--", "-")
    assert before.get_color() == after.get_color() == contender.colour
    assert np.allclose(before.get_ydata(), 40)
    assert np.allclose(after.get_ydata(), 60)


def test_the_divergence_of_the_uniform_mixture_is_that_of_the_formula() -> None:
    true = np.array([[1.0, 0.0], [0.5, 0.5], [0.25, 0.75]])
    by_hand = [LN2, 0.0, 0.25 * math.log(0.5) + 0.75 * math.log(1.5)]
    assert uniform_kl(true).tolist() == pytest.approx(by_hand)


def test_the_reference_is_the_uniform_mixture_over_the_estimated_exchanges_of_all_methods() -> None:
    pure, even = [1.0, 0.0], [0.5, 0.5]
    one = asking_run([exchange(t, mixture=pure, estimate=even, kl=LN2) for t in (0.0, 2.0)], "cdfl")
    other = asking_run([exchange(t, mixture=even, estimate=even, kl=0.0) for t in (1.0, 3.0)], "fedsoft-async")
    other.exchange_log.append(exchange(4.0, mixture=pure))  # type: ignore[attr-defined]
    contenders = contenders_of([one, other])
    ((_, (at, divergence)),) = uniform_references(contenders)
    assert (at.tolist(), divergence.tolist()) == ([0, 1, 2, 3], pytest.approx([LN2, 0, LN2, 0]))
    *courses, reference = exchanges.divergence_over_time(contenders).axes[0].lines
    assert [line.get_ydata().tolist() for line in courses] == [[LN2, LN2], [0, 0]]
    assert reference.get_linestyle() == "--"
    assert reference.get_ydata().tolist() == divergence.tolist()


def test_the_reference_ends_where_the_lines_of_the_methods_end() -> None:
    share = {"mixture": [1.0, 0.0], "estimate": [0.5, 0.5], "kl": LN2}
    runs = [
        asking_run([exchange(t, **share) for t in (10.0, 20.0, last)], seed=seed)
        for seed, last in enumerate((30.0, 90.0))
    ]
    line, reference = exchanges.divergence_over_time(contenders_of(runs)).axes[0].lines
    assert line.get_xdata()[-1] == reference.get_xdata()[-1] == 30


def test_each_world_has_a_reference_of_its_own() -> None:
    runs = [
        asking_run([exchange(1.0, mixture=[1.0] + [0.0] * (k - 1), estimate=[1 / k] * k, kl=math.log(k))])
        for k in (2, 4)
    ]
    runs = [
        made_run({**run.config, "partition": f"rotations:{k}"}, run.result, exchanges=run.exchange_log)
        for k, run in zip((2, 4), runs, strict=True)
    ]
    references = uniform_references(contenders_of(runs))
    assert [line[1].tolist() for _, line in references] == [pytest.approx([math.log(k)]) for k in (2, 4)]


def test_every_cluster_has_a_thin_line_and_their_mean_a_thick_one() -> None:
    rows = [{"time": t, "cluster_accuracy": np.array([0.2, 0.6]) + t / 100} for t in (0.0, 10.0)]
    run = made_run({}, {"strategy": "cdfl", "seed": 0}, [{"time": 0.0, "accuracy": 0.1}, *rows])
    lines = exchanges.cluster_accuracy_over_time(contenders_of([run])).axes[0].lines
    assert [line.get_ydata().round(6).tolist() for line in lines] == [[20, 30], [60, 70], [40, 50]]
    assert lines[2].get_linewidth() > lines[0].get_linewidth()


def test_an_answer_is_weighed_in_kilobytes_and_in_models() -> None:
    runs = [
        asking_run([exchange(1.0)], name, bytes_per_exchange=40_000.0 * models, downloads_ratio=models)
        for name, models in (("cdfl", 1), ("fedsoft-async", 3))
    ]
    axes = exchanges.weight_of_answers(contenders_of(runs)).axes[0]
    assert [patch.get_width() for patch in axes.patches] == [40, 120]
    assert [text.get_text() for text in axes.texts] == ["40.0 (1 model)", "120 (3 models)"]


# Mixtures


def test_the_clients_with_most_exchanges_are_shown_and_of_equals_the_first_numbers() -> None:
    share = {"mixture": [1.0], "estimate": [1.0]}
    rows = [exchange(float(i), client, **share) for i, client in enumerate([7, 7, 7, 5, 5, 2, 2, 9, 1])]
    rows += [exchange(20.0 + i, 9) for i in range(9)]  # without an estimate: nothing to show
    assert busiest_clients(mixtures(asking_run(rows)), 4) == [1, 2, 5, 7]


def test_an_estimate_of_other_clusters_is_compared_with_nothing() -> None:
    rows = [exchange(1.0, mixture=[0.5, 0.5], estimate=[1.0]), exchange(2.0, mixture=[0.5, 0.5], estimate=[0.25, 0.75])]
    assert mixtures(asking_run(rows)).times.tolist() == [2.0]


def test_bands_are_as_thick_as_the_shares_the_true_ones_above_and_last_until_the_next_exchange() -> None:
    rows = [
        exchange(10.0, 4, mixture=[0.25, 0.75], estimate=[0.5, 0.5]),
        exchange(20.0, 4, mixture=[1.0, 0.0], estimate=[0.875, 0.125]),
    ]
    run = asking_run([*rows, exchange(40.0)])
    (axes,) = mixture_bands(run).axes
    assert axes.get_title(loc="left") == "client 4, 2 exchanges"

    assert [label.get_text() for label in axes.get_yticklabels()] == ["estimated", "true"]

    def cluster_at(time: float, height: float) -> list[int]:
        paths = [band.get_paths()[0] for band in axes.collections]
        return [number % 2 for number, path in enumerate(paths) if path.contains_point((time, height))]

    true = 1 + GAP
    assert [cluster_at(time, true + share) for time, share in ((15, 0.2), (15, 0.3), (25, 0.9))] == [[0], [1], [0]]
    assert [cluster_at(time, share) for time, share in ((15, 0.4), (15, 0.6), (39, 0.8), (39, 0.9))] == [
        [0],
        [1],
        [0],
        [1],
    ]
    assert cluster_at(5, 0.5) == []


def test_the_shares_of_the_last_quarter_are_plotted_with_their_correlation() -> None:
    early = [exchange(float(i), mixture=[0.9, 0.1], estimate=[0.1, 0.9]) for i in range(6)]
    late = [
        exchange(10.0 + i, mixture=[share, 1 - share], estimate=[share, 1 - share]) for i, share in ((0, 0.2), (1, 0.7))
    ]
    (axes,) = estimated_against_true(asking_run(early + late)).axes
    first, second, diagonal = axes.lines
    assert (first.get_xdata().tolist(), first.get_ydata().tolist()) == ([0.2, 0.7], [0.2, 0.7])
    assert second.get_xdata().tolist() == pytest.approx([0.8, 0.3])
    assert list(diagonal.get_xdata()) == list(diagonal.get_ydata()) == [0, 1]
    assert keys_of(axes) == ["cluster 0", "cluster 1", "equal (r = 1.00)"]


def test_a_single_cluster_has_no_correlation_and_is_still_drawn() -> None:
    run = asking_run([exchange(float(i), mixture=[1.0], estimate=[1.0], kl=0.0) for i in range(3)])
    (axes,) = estimated_against_true(run).axes
    assert keys_of(axes) == ["cluster 0", "equal (r = –)"]
    assert "mixtures" in figures_in(page([run], "K = 1"))


# The page and the table


def test_the_proxy_sets_that_were_set_aside_are_among_the_settings() -> None:
    config = {"strategy": "cdfl", "proxies": None, "warm_up": None}
    resolved = {"proxies": [40, 30], "warm_up": 5}
    runs = [made_run({**config, "resolved": resolved}, {"strategy": "cdfl", "seed": seed}) for seed in (0, 1)]
    shown = re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", page(runs, "proxies"))
    assert ("proxies", "40, 30") in shown
    assert ("warm up", "5") in shown
    runs[1] = made_run({**config, "resolved": {"proxies": [20, 20], "warm_up": 5}}, runs[1].result)
    assert "<dd>40, 30 or 20, 20</dd>" in page(runs, "sizes that depend on the seed, of one method")
    assert "proxies" not in page([made_run(config, {"strategy": "cdfl", "seed": 0})], "none")


def test_without_exchanges_there_is_neither_a_section_nor_a_column() -> None:
    run = made_run({}, {"strategy": "fedasync", "seed": 0, "accuracy": 0.5})
    assert "Exchanges" not in page([run], "none")
    assert list(comparison_rows([run])[0].cells) == ["served %"]


def test_the_section_shows_every_figure_and_the_mixtures_of_the_methods_that_estimate(html: str) -> None:
    section = section_of(html)
    over_time = {"exchange-accuracy", "exchange-kl", "exchange-clusters", "exchange-bytes"}
    assert figures_in(section) == over_time | {
        "mixtures-cdfl",
        "mixtures-fedsoft-async",
        "shares-cdfl",
        "shares-fedsoft-async",
    }
    headings = [re.sub("<.*?>", "", heading) for heading in re.findall("<h3>(.*?)</h3>", section)]
    assert headings == ["cdfl, seed 0", "fedsoft-async, seed 0"]
    assert "The 6 clients with most exchanges are shown." in section
    assert "at most 40 are shown" in section


def test_what_no_method_has_is_not_shown() -> None:
    rows = [exchange(float(i), before=0.5, after=0.6) for i in range(20)]
    section = section_of(page([asking_run(rows, "fedbuff", accuracy_before=0.5, accuracy_after=0.6)], "no mixtures"))
    assert figures_in(section) == {"exchange-accuracy"}
    assert re.findall(r"<th\b[^>]*>([^<]+)</th>", section)[:4] == ["method", "exchanges", "before %", "after %"]
    assert "KL" not in section


def test_the_section_gives_the_figures_of_the_result(html: str, several: list[Run]) -> None:
    row = next(line for line in section_of(html).splitlines() if "<td>" in line and "fedsoft-async" in line)
    cells = re.findall("<td>(.*?)</td>", row)
    clusters = np.mean([run.cluster_accuracies for run in several[2:4]], axis=0)
    assert cells[0] == "600"
    assert cells[4] == " · ".join(f"{100 * accuracy:.1f}" for accuracy in clusters)
    assert cells[-2:] == ["121", "3.00"]


def test_ids_stay_unique_and_figures_small(html: str) -> None:
    ids = re.findall(r'\bid="([^"]*)"', html)
    assert len(ids) == len(set(ids))
    assert max(map(len, re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL))) < 300_000


def test_the_table_compares_what_clients_have_after_an_exchange_and_the_lowest_divergence_is_best() -> None:
    figures = {"cdfl": (0.75, 0.125, 0.5), "fedsoft-async": (0.5, 0.25, 0.625), "fedbuff": (0.625, None, None)}
    runs = [
        asking_run(
            [exchange(1.0)],
            name,
            seed,
            accuracy_after=after,
            mixture_kl=kl,
            mixture_kl_uniform=0.1875,
            cluster_accuracy=cluster,
        )
        for name, (after, kl, cluster) in figures.items()
        for seed in range(8)
    ]
    rows = comparison_rows(runs)
    shown = {title: [(row.cells[title].text, row.cells[title].best) for row in rows] for title in rows[0].cells}
    assert shown["after exchange %"] == [("75.0", True), ("50.0", False), ("62.5", False)]
    assert shown["mixture KL"] == [("0.125", True), ("0.250", False), ("–", False)]
    assert shown["uniform KL"] == [("0.188", False), ("0.188", False), ("–", False)]
    assert list(shown).index("uniform KL") == list(shown).index("mixture KL") + 1
    assert "uniform KL" not in comparison_rows(runs[16:])[0].cells
    assert shown["cluster %"] == [("50.0", False), ("62.5", True), ("–", False)]


def test_the_terminal_table_fits_a_hundred_columns_and_cuts_nothing(several: list[Run]) -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(rich_table(several, 100))
    text = console.export_text()
    assert all(len(line.rstrip()) <= 100 for line in text.splitlines())
    assert "…" not in text
    assert all(cell.text in text for row in comparison_rows(several) for cell in row.cells.values())
