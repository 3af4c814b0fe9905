"""The page of a report: whole in itself, the same for the same runs, and small."""

import re
from pathlib import Path

import pytest

from polytempo.report.drawing import figures
from polytempo.report.drawing.canvas import canvas, inline_svg
from polytempo.report.drawing.timeline import timeline
from polytempo.report.facts.contenders import contenders_of
from polytempo.report.page import page, write_report
from polytempo.report.run import Run
from support.runs import made_run
from support.synthetic_runs import SHAPES, simple_run, synthetic_run


@pytest.fixture(scope="module")
def html(several: list[Run]) -> str:
    return page(several, "four methods")


def test_the_page_holds_every_section_and_figure(html: str) -> None:
    headings = re.findall(r"<h2>(.*?)</h2>", html)
    assert headings == [
        "What was run",
        "Results",
        "Differences",
        "Better off than alone?",
        "Figures",
        "Who trained when",
        "Every run",
    ]
    assert html.count("<svg ") == html.count("<figcaption>") == 1 + 8 + len(SHAPES)
    for axis in ("virtual time (s)", "staleness (versions)", "traffic so far (MB)", "sorted by what they gain (%)"):
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
    ends = [{"time": t, "updates": t, "accuracy_used": a} for t, a in ((0, 0.0), (10, 0.5))]
    high = [{"time": t, "updates": t, "accuracy_used": a} for t, a in ((0, 0.2), (20, 0.6))]
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
