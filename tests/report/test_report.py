import heapq
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from polytempo.core.errors import UserError
from polytempo.core.streams import stream
from polytempo.report.drawing import figures
from polytempo.report.drawing.canvas import canvas, inline_svg
from polytempo.report.drawing.timeline import timeline
from polytempo.report.facts.contenders import better_off, contenders_of
from polytempo.report.page import page, write_report
from polytempo.report.run import Run
from polytempo.report.table import comparison_rows, markdown_table, rich_table
from polytempo.sim.result import Result
from support.runs import made_run

REFUSED = Result.refused.title
THAN_ALONE = "better / equal / worse than alone %"

# How good each strategy ends and how fast it gets there, for runs that look like real ones.
SHAPES = {"standalone": (0.80, 300), "fedavg": (0.84, 500), "fedasync": (0.88, 250), "fedbuff": (0.91, 350)}


def synthetic_run(
    strategy: str = "fedasync",
    seed: int = 0,
    clients: int = 20,
    updates: int = 400,
    target: float | None = 0.85,
    **config: Any,
) -> Run:
    """A run in the simulator's format: a third of the devices is five times slower, accuracy saturates."""
    draw = stream(seed, "synthetic " + strategy)
    best, pace = SHAPES[strategy]
    seconds = stream(seed, "synthetic devices").normal(1.0, 0.1, clients).clip(0.5)
    seconds[: clients // 3] *= 5
    ease = stream(seed, "synthetic clients").normal(0, 0.05, clients)
    heap = [(10 * seconds[client], client, 0.0, 0) for client in range(clients)]
    heapq.heapify(heap)
    log: list[dict] = []
    evaluations: list[dict] = []
    for version in range(updates):
        now, client, began, started_from = heapq.heappop(heap)
        stale = 0 if strategy in ("standalone", "fedavg") else version - started_from
        row = {"time": now, "client": client, "began": began, "steps": 10, "staleness": stale, "version": started_from}
        log.append(row | {"samples": 80})
        heapq.heappush(heap, (now + 10 * seconds[client] * draw.uniform(0.95, 1.05), client, now, version + 1))
        if version % max(1, updates // 25) == 0 or version == updates - 1:
            level = best * (1 - math.exp(-3 * version / pace / (clients / 20)))
            per_client = (level + ease + draw.normal(0, 0.04, clients)).clip(0, 1).round(2)
            evaluations.append(
                {
                    "time": now,
                    "updates": version + 1,
                    "accuracy": float(per_client.mean()),
                    "accuracy_trained": float(per_client.mean()) + 0.01,
                    "accuracy_std": float(per_client.std()),
                    "accuracy_slowest_fifth": float(per_client[: max(1, clients // 5)].mean()) - 0.05,
                    "accuracy_fastest_fifth": float(per_client[-max(1, clients // 5) :].mean()) + 0.02,
                    "idle_share": 0.25,
                    "clusters": 1,
                    "ari": None,
                    "bytes_up": 0 if strategy == "standalone" else 318_040 * (version + 1),
                    "bytes_down": 0 if strategy == "standalone" else 318_040 * (version + clients),
                    "per_client": per_client.tolist(),
                    "per_client_trained": [None, *per_client.tolist()[1:]],
                    "per_client_idle": [0.25] * clients,
                }
            )
    last = evaluations[-1]
    reached = [row["time"] for row in evaluations if target is not None and row["accuracy"] >= target]
    result = {
        **{key: last[key] for key in last if key != "time" and not key.startswith("per_client")},
        "strategy": strategy,
        "seed": seed,
        "virtual_time": last["time"],
        "time_to_target": reached[0] if reached else None,
        "client_steps": 10 * updates,
        "wall_seconds": 3.2,
        "train_seconds": 2.9,
        "overhead_seconds": 0.1,
        "mean_staleness": sum(row["staleness"] for row in log) / updates,
        "digest": f"{seed:064x}",
    }
    settings = {
        "strategy": strategy,
        "parameters": {"mixing": 0.6, "staleness": "polynomial:0.5"} if strategy == "fedasync" else {},
        "data": "digits",
        "clients": clients,
        "partition": "groups",
        "devices": "slow:0.3x5",
        "model": "mlp",
        "seed": seed,
        "target": target,
        "updates": updates,
        "time": None,
        "lr": 0.05,
        "versions": {"polytempo": "0.1.0", "torch": "2.13.0"},
    }
    marks = [{"time": row["time"], "kind": "refresh", "client": row["client"]} for row in log[10::60]]
    return made_run(settings | config, result, evaluations, log, marks if strategy == "fedbuff" else [])


def simple_run(strategy: str, accuracies: list[float | None], seed: int = 0, **config: Any) -> Run:
    """A run of which only the final accuracies of its clients are known."""
    result = dict.fromkeys(synthetic_run(updates=1).result) | {"strategy": strategy, "seed": seed}
    result["accuracy"] = sum(filter(None, accuracies)) / len(accuracies)
    world = {"strategy": strategy, "seed": seed, "data": "digits", "clients": len(accuracies), "partition": "iid"}
    return made_run(world | config, result, [{"time": 1.0, "updates": 1, "per_client": accuracies}])


def write_run(run: Run, directory: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(run.config))
    (directory / "result.json").write_text(json.dumps(dict(run.result)))
    for name, rows in (("evaluations", run.evaluations), ("updates", run.update_log), ("marks", run.marks)):
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory


@pytest.fixture(scope="module")
def several() -> list[Run]:
    return [synthetic_run(strategy, seed) for strategy in SHAPES for seed in range(3)]


@pytest.fixture(scope="module")
def html(several: list[Run]) -> str:
    return page(several, "four methods")


# Runs


def test_a_run_read_from_its_directory_is_the_run_that_was_written(tmp_path: Path) -> None:
    run = synthetic_run("fedbuff")
    read = Run.load(write_run(run, tmp_path / "run"))
    assert (read.config, read.result, read.evaluations) == (run.config, run.result, run.evaluations)
    assert (read.update_log, read.marks) == (run.update_log, run.marks)


def test_every_figure_of_the_result_is_an_attribute() -> None:
    run = synthetic_run()
    assert {name: getattr(run, name) for name in run.result} == run.result
    assert run.updates == 400 == len(run.update_log)


def test_a_run_says_who_it_is_in_one_line() -> None:
    run = synthetic_run(seed=3)
    assert repr(run).startswith(f"<Run fedasync, seed 3: accuracy {100 * run.accuracy:.1f}%")
    assert "accuracy unknown" in made_run({}, dict.fromkeys(run.result)).summary()


def test_a_run_without_marks_loads(tmp_path: Path) -> None:
    directory = write_run(synthetic_run(), tmp_path / "run")
    (directory / "marks.jsonl").unlink()
    assert len(Run.load(directory).marks) == 0


@pytest.mark.parametrize(
    ("missing", "words"),
    [("config.json", "no config.json"), ("updates.jsonl", "no updates.jsonl"), ("result.json", "let it finish")],
)
def test_a_directory_that_is_no_run_is_an_error_that_names_what_is_missing(
    tmp_path: Path, missing: str, words: str
) -> None:
    directory = write_run(synthetic_run(updates=5), tmp_path / "run")
    (directory / missing).unlink()
    with pytest.raises(UserError, match=words):
        Run.load(directory)


def test_a_run_of_another_version_is_refused_in_plain_words(tmp_path: Path) -> None:
    directory = write_run(synthetic_run(updates=5), tmp_path / "run")
    (directory / "result.json").write_text('{"accuracy": 0.5}')
    with pytest.raises(UserError, match="another version"):
        Run.load(directory)


def test_a_missing_directory_and_a_cut_line_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a directory"):
        Run.load(tmp_path / "nowhere")
    directory = write_run(synthetic_run(updates=5), tmp_path / "run")
    whole = (directory / "updates.jsonl").read_text()
    (directory / "updates.jsonl").write_text(whole[:-10])
    with pytest.raises(UserError, match=r"updates\.jsonl, line 5"):
        Run.load(directory)


def test_a_reconstructed_method_is_called_so(monkeypatch):
    monkeypatch.setitem(SHAPES, "asafl", (0.8, 300))
    runs = [synthetic_run("asafl", parameters={"mixing": mixing}) for mixing in (0.01, 0.6)]
    assert [contender.label for contender in contenders_of(runs[:1])] == ["asafl (reconstructed)"]
    labels = ["asafl (reconstructed, mixing 0.01)", "asafl (reconstructed, mixing 0.6)"]
    assert [contender.label for contender in contenders_of(runs)] == labels


def test_plot_saves_a_file_and_refuses_an_unknown_ending(tmp_path: Path) -> None:
    run = synthetic_run()
    assert len(run.plot(tmp_path / "plot.svg").axes) == 4
    assert (tmp_path / "plot.svg").read_text().rstrip().endswith("</svg>")
    with pytest.raises(UserError, match="png"):
        run.plot(tmp_path / "plot.xyz")


# Methods and tables


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
    assert (shares.better, shares.equal, shares.worse) == pytest.approx((3 / 7, 2 / 7, 2 / 7))
    assert better_off(alone, runs) is None


def test_standalone_of_another_world_is_no_comparison() -> None:
    runs = [simple_run("standalone", [0.5]), simple_run("fedavg", [0.6], data="mnist"), simple_run("fedbuff", [0.6], 7)]
    assert [better_off(contender, runs) for contender in contenders_of(runs)] == [None, None, None]
    assert THAN_ALONE not in comparison_rows(runs)[0].cells


def test_the_table_says_how_many_are_better_equally_well_and_worse_off_than_alone() -> None:
    runs = [
        simple_run("standalone", [0.5, 0.5, 0.5, 0.5]),
        simple_run("fedavg", [0.6, 0.7, 0.5, 0.4]),
        simple_run("fedbuff", [0.6, 0.5, 0.5, 0.5]),
    ]
    cells = [row.cells[THAN_ALONE] for row in comparison_rows(runs)]
    assert [cell.text for cell in cells] == ["–", "50.0 / 25.0 / 25.0", "25.0 / 75.0 / 0.0"]
    assert [cell.best for cell in cells] == [False, True, False]


def test_refused_updates_are_in_table_and_page_where_there_are_some() -> None:
    runs = [simple_run("fedavg", [0.5]), simple_run("fedbuff", [0.5])]
    assert REFUSED not in comparison_rows(runs)[0].cells
    figures = {**runs[1].result, "refused": 7}
    runs = [made_run(runs[0].config, {**runs[0].result, "refused": 0}), made_run(runs[1].config, figures)]
    assert [row.cells[REFUSED].text for row in comparison_rows(runs)] == ["0", "7"]
    assert "training diverges" in page(runs, "one diverges")


def test_the_table_gives_mean_and_deviation_over_seeds_and_marks_the_best() -> None:
    runs = [simple_run("fedavg", [a], seed) for seed, a in enumerate((0.5, 0.6, 0.7))] + [simple_run("fedbuff", [0.55])]
    fedavg, fedbuff = comparison_rows(runs)
    assert (fedavg.cells["accuracy %"].text, fedavg.cells["accuracy %"].best) == ("60.0 ± 10.0", True)
    assert (fedbuff.cells["accuracy %"].text, fedbuff.cells["accuracy %"].best) == ("55.0", False)
    assert "| fedavg | **60.0 ± 10.0** |" in markdown_table(runs)


def test_time_to_target_says_how_many_seeds_reached_it_and_only_who_always_does_is_best() -> None:
    times = {"fedavg": (None, None), "fedasync": (10.0, None), "fedbuff": (20.0, 22.0)}
    runs = [simple_run(name, [0.5], seed, target=0.4) for name in times for seed in (0, 1)]
    runs = [made_run(run.config, {**run.result, "time_to_target": times[run.strategy][run.seed]}) for run in runs]
    cells = [row.cells["time to target s"] for row in comparison_rows(runs)]
    assert [cell.text for cell in cells] == ["not reached", "10.0 (1 of 2)", "21.0"]
    assert [cell.best for cell in cells] == [False, False, True]


def test_a_column_that_nobody_has_is_left_out() -> None:
    (row,) = comparison_rows([simple_run("fedavg", [0.5])])
    assert list(row.cells) == ["accuracy %"]


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
    tables = text.split("method")[1:]
    assert len(tables) > 1
    assert all(table.count(f"(mixing {m / 16})") == 1 for table in tables for m in range(1, 11))
    rows = comparison_rows(runs)
    assert [found.strip() for found in re.findall(r"[\d.]+ ± [\d.]+", text)] == [
        r.cells["accuracy %"].text for r in rows
    ]
    assert all(word in text for title in rows[0].cells for word in title.split())


def test_no_runs_is_an_error() -> None:
    with pytest.raises(UserError, match="no runs"):
        comparison_rows([])


# The page


def test_the_page_holds_every_section_and_figure(html: str) -> None:
    headings = re.findall(r"<h2>(.*?)</h2>", html)
    assert headings == [
        "What was run",
        "Results",
        "Better off than alone?",
        "Figures",
        "Who trained when",
        "Every run",
    ]
    assert html.count("<svg ") == html.count("<figcaption>") == 1 + 8 + len(SHAPES)
    for axis in ("virtual time (s)", "staleness (versions)", "traffic so far (MB)", "share of clients (%)"):
        assert axis in html


def test_the_page_is_whole_in_itself(html: str) -> None:
    assert not re.search(r"https?://|<script|<link|@import|<img", html)
    assert all(target.startswith("#") for target in re.findall(r'(?:href|src)="([^"]*)"', html))
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", html))


def test_ids_are_unique_and_every_reference_finds_one(html: str) -> None:
    ids = re.findall(r'\bid="([^"]*)"', html)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="|url\()#([^")]*)', html)) <= set(ids)


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    paths = [write_report([synthetic_run("fedbuff")], tmp_path / f"{i}" / "report.html", "once") for i in range(2)]
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_what_comes_from_the_configuration_is_escaped() -> None:
    nasty = '<img src=x onerror="alert(1)">&$x_$'
    odd = simple_run("fedavg", [0.5], data=nasty, parameters={nasty: nasty}, versions={nasty: nasty})
    text = page([odd, simple_run("fedavg", [0.5])], nasty)
    assert "<img" not in text
    assert "&lt;img src=x" in text


def test_settings_that_differ_are_highlighted_and_shared_ones_are_not() -> None:
    text = page([simple_run("fedavg", [0.5], lr=0.25), simple_run("fedbuff", [0.5], lr=0.125)], "two")
    assert re.findall("<mark>(.*?)</mark>", text) == ["0.25", "0.125"]


def test_what_is_empty_in_a_drift_is_not_shown() -> None:
    drift = {"kind": "mixture", "labels": [], "clients": "all", "at": None, "after": 1, "every": 1}
    assert "<dd>kind=mixture clients=all after=1 every=1</dd>" in page(
        [simple_run("fedavg", [0.5], drift=[drift])], "x"
    )


def test_a_method_has_one_colour_through_all_plots(several: list[Run]) -> None:
    colours = {contender.label: contender.colour for contender in contenders_of(several)}
    assert len(set(colours.values())) == len(SHAPES)
    for draw in (figures.accuracy_over_time, figures.per_client_spread):
        drawn = [line.get_color() for line in draw(several).axes[0].lines]
        assert drawn[: len(SHAPES)] == list(colours.values())


def test_the_line_of_several_seeds_is_their_mean() -> None:
    ends = [{"time": t, "updates": t, "accuracy": a} for t, a in ((0, 0.0), (10, 0.5))]
    high = [{"time": t, "updates": t, "accuracy": a} for t, a in ((0, 0.2), (20, 0.6))]
    runs = [made_run({}, {"strategy": "fedavg", "seed": seed}, rows) for seed, rows in enumerate((ends, high))]
    x, y = figures.accuracy_over_time(runs).axes[0].lines[0].get_data()
    assert (x[0], y[0], x[-1], y[-1]) == pytest.approx((0, 10, 10, 45))


@pytest.mark.parametrize(
    "run",
    [
        simple_run("fedavg", [0.5, None, 0.7]),
        simple_run("fedavg", [0.5]),
        made_run({}, {"strategy": "fedavg", "seed": 0}),
        synthetic_run("fedasync", clients=1, updates=3, target=None),
        synthetic_run("fedasync", clients=2, updates=1, target=0.99),
    ],
    ids=["only accuracies", "one client, no updates", "nothing at all", "one client", "one update"],
)
def test_runs_that_lack_things_are_still_reported(run: Run) -> None:
    text = page([run], "sparse")
    assert "nan" not in re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL).replace("tabular-nums", "")
    assert len(run.plot().axes) == 4
    assert run.summary()


def test_a_report_on_many_clients_and_updates_stays_small() -> None:
    clients, updates = 1_000, 100_000
    rows = [
        {"time": i / 10 + 5, "client": i % clients, "began": i / 10, "steps": 5, "staleness": i % 300}
        for i in range(updates)
    ]
    marks = [{"time": i / 10, "kind": "refresh", "client": i % clients} for i in range(0, updates, 3)]
    marks.append({"time": 3.0, "kind": "drift", "client": None})
    run = made_run(
        {"clients": clients}, {"strategy": "fedasync", "seed": 0, "virtual_time": updates / 10}, [], rows, marks
    )
    text = page([run], "many")
    assert max(map(len, re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL))) < 300_000
    assert ", the first " in text


def test_the_timeline_shows_the_slowest_client_on_top_and_the_fastest_at_the_bottom() -> None:
    rows = [{"time": c + 1.0, "client": c, "began": 0.0, "steps": 1, "staleness": 0} for c in range(90)]
    axes = timeline(made_run({}, {"strategy": "fedasync", "seed": 0}, [], rows)).axes[0]
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert (len(names), names[0], names[-1]) == (40, "89", "0")


def test_numbers_in_labels_are_not_rounded_with_the_coordinates() -> None:
    figure, axes = canvas()
    axes.text(0.5, 0.5, "0.12345")
    assert ">0.12345<" in inline_svg(figure, "x")
