"""What a user sees of arrival groups and idle time: in Python, in the table and in the report."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.patches import PathPatch, StepPatch

from polytempo import simulate
from polytempo.report.drawing.arrivals import FIRST, NEUTRAL, arrival_timeline
from polytempo.report.drawing.canvas import INK
from polytempo.report.drawing.idle import idle_shares
from polytempo.report.facts.arrivals import ArrivedClient, ArrivedGroup
from polytempo.report.facts.contenders import COLOURS
from polytempo.report.page import page
from polytempo.report.run import Run
from polytempo.report.table import comparison_rows
from support.runs import made_run

BLUE = COLOURS[0]


def update(client: int, began: float, time: float, steps: int, *planned: float) -> dict[str, Any]:
    """A row of the update log; planned: the number of its arrival group, expected, latest."""
    row = {"time": time, "client": client, "began": began, "steps": steps, "staleness": 0, "version": 0, "samples": 9}
    return row | dict(zip(("arrival_group", "expected", "latest"), planned, strict=bool(planned)))


# Three clients find their speed, two arrive together, client 2 is late for them, then all three meet.
FIRST_ROUNDS = [update(0, 0, 10, 20), update(1, 0, 12, 20), update(2, 0, 20, 20)]
LOG = [
    *FIRST_ROUNDS,
    update(1, 12, 58, 80, 1, 60, 70),
    update(0, 10, 61, 100, 1, 60, 70),
    update(2, 20, 95, 40, 1, 60, 70),
    update(0, 70, 118, 96, 2, 120, 130),
    update(1, 70, 121, 86, 2, 120, 130),
    update(2, 95, 130, 21, 2, 120, 130),
]


def loss(client: int, time: float, *planned: float) -> dict[str, Any]:
    """A mark: the client is gone, with what it trained for this group, if for any."""
    row = {"time": time, "kind": "left", "client": client}
    return row | dict(zip(("arrival_group", "expected", "latest"), planned, strict=bool(planned)))


# Client 2 is lost on the way to the second group, all of them on the way to a third.
LOSSES = [loss(2, 90, 2, 120, 130), *(loss(client, 124 + client, 3, 170, 180) for client in range(3))]


def run_of(
    log: list[dict[str, Any]],
    strategy: str = "fedcompass",
    seed: int = 0,
    marks: list[dict[str, Any]] | None = None,
    **evaluation: Any,
) -> Run:
    clients = len({row["client"] for row in log}) or 3
    last = {"time": 130.0, "updates": len(log), "accuracy": 0.5, "per_client": [0.5] * clients} | evaluation
    result = {"strategy": strategy, "seed": seed, "accuracy": 0.5, "virtual_time": 130.0, "updates": len(log)}
    return made_run({"clients": clients}, result, [last], log, marks or [])


def bars(axes: Axes, colour: str) -> int:
    """How many bars of a colour there are: each is a closed outline."""
    paths = [
        patch for patch in axes.patches if isinstance(patch, PathPatch) and to_hex(patch.get_facecolor()) == colour
    ]
    return sum(int(np.count_nonzero(path.get_path().codes == path.get_path().MOVETO)) for path in paths)


def strokes(axes: Axes, colour: str) -> int:
    """How many straight lines of a colour there are: each ends in a gap."""
    lines = [line for line in axes.lines if line.get_color() == colour]
    return sum(int(np.isnan(np.asarray(line.get_xdata(), dtype=float)).sum()) for line in lines)


def flags(axes: Axes) -> list[float]:
    return [x for line in axes.lines if line.get_marker() == "v" for x in line.get_xdata()]


def crosses(axes: Axes) -> list[tuple[float, str, str]]:
    """When which client lost a training, and in which colour this is drawn."""
    names = dict(zip(axes.get_yticks(), (label.get_text() for label in axes.get_yticklabels()), strict=True))
    lines = [line for line in axes.lines if line.get_marker() == "x"]
    return sorted((x, names[y], str(line.get_color())) for line in lines for x, y in line.get_xydata())


def hatched(axes: Axes) -> list[tuple[float, float]]:
    """From when to when."""
    outlines = [patch.get_path().get_extents() for patch in axes.patches if patch.get_hatch()]
    return [(outline.x0, outline.x1) for outline in outlines]


def legend(axes: Axes) -> list[str]:
    found = axes.get_legend()
    return [text.get_text() for text in found.get_texts()] if found else []


def written(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def section(text: str) -> str:
    found = re.search(r"<h2>Arrival groups</h2>.*?</section>", text, flags=re.DOTALL)
    return found.group() if found else ""


# In Python


def test_arrival_groups_say_who_came_when_with_how_many_steps() -> None:
    first, second = run_of(LOG).arrival_groups()
    assert first == ArrivedGroup(
        1, 60, 70, [ArrivedClient(1, 80, 12, 58), ArrivedClient(0, 100, 10, 61), ArrivedClient(2, 40, 20, 95)], []
    )
    assert (second.number, second.expected, second.latest, len(second.arrivals)) == (2, 120, 130, 3)


def test_late_is_who_comes_after_the_latest_time_and_not_who_comes_just_then() -> None:
    first, second = run_of(LOG).arrival_groups()
    assert [member.client for member in first.late()] == [2]
    assert second.late() == []


def test_a_group_names_whom_it_awaited_in_vain_also_where_nobody_came() -> None:
    groups = run_of(LOG, marks=[loss(0, 5), *LOSSES]).arrival_groups()
    assert [group.lost for group in groups] == [[], [2], [0, 1, 2]]
    assert groups[2] == ArrivedGroup(3, 170, 180, [], [0, 1, 2])


def test_groups_come_by_number_even_if_a_later_one_arrives_first() -> None:
    log = [update(0, 0, 10, 5, 2, 10, 12), update(1, 0, 20, 5, 1, 20, 24)]
    assert [group.number for group in run_of(log).arrival_groups()] == [1, 2]


@pytest.mark.parametrize("log", [[], FIRST_ROUNDS], ids=["no updates", "first rounds only"])
def test_a_run_without_planned_arrivals_has_no_groups_and_no_section(log: list[dict[str, Any]]) -> None:
    run = run_of(log)
    assert run.arrival_groups() == []
    assert section(page([run], "early")) == ""
    arrival_timeline(run, BLUE).draw_without_rendering()


# The timeline


def test_every_update_is_a_bar_in_the_colour_of_its_group_and_first_rounds_are_grey() -> None:
    (axes,) = arrival_timeline(run_of(LOG), BLUE).axes
    assert [bars(axes, colour) for colour in (FIRST, BLUE, COLOURS[1])] == [3, 3, 3]


def test_every_planned_bar_has_a_tick_and_a_whisker_and_every_late_one_a_flag() -> None:
    (axes,) = arrival_timeline(run_of(LOG), BLUE).axes
    assert [strokes(axes, colour) for colour in (INK, BLUE, COLOURS[1])] == [6, 3, 3]
    assert flags(axes) == [95]


def test_only_what_lies_after_the_latest_time_is_hatched() -> None:
    (axes,) = arrival_timeline(run_of(LOG), BLUE).axes
    assert hatched(axes) == [(70, 95)]
    assert legend(axes)[-2:] == ["after the latest", "late arrival"]
    after_expected = [update(0, 0, 64, 9, 1, 60, 70), update(1, 0, 70, 9, 1, 60, 70)]
    (axes,) = arrival_timeline(run_of(after_expected), BLUE).axes
    assert (hatched(axes), flags(axes)) == ([], [])
    assert legend(axes) == ["expected arrival", "from expected to latest"]


def test_a_cross_marks_when_a_training_was_lost_in_the_colour_of_its_group() -> None:
    (axes,) = arrival_timeline(run_of(LOG, marks=[loss(0, 5), *LOSSES]), BLUE).axes
    third = [(124, "0", COLOURS[2]), (125, "1", COLOURS[2]), (126, "2", COLOURS[2])]
    assert crosses(axes) == [(5, "0", INK), (90, "2", COLOURS[1]), *third]
    assert legend(axes)[-1] == "lost"
    assert "lost" not in legend(arrival_timeline(run_of(LOG), BLUE).axes[0])


def test_the_legend_shows_no_colour_of_a_group() -> None:
    (axes,) = arrival_timeline(run_of(LOG, marks=LOSSES), BLUE).axes
    found = axes.get_legend()
    assert found is not None
    assert {line.get_color() for line in found.get_lines()} == {INK, NEUTRAL}


@pytest.mark.parametrize("clients", [2, 5, 8, 20])
def test_the_name_of_the_rows_keeps_clear_of_their_labels(clients: int) -> None:
    log = [update(client, 0, 10 + client, 5, 1, 20, 40) for client in range(clients)]
    figure = arrival_timeline(run_of(log), BLUE)
    figure.draw_without_rendering()
    (axes,) = figure.axes
    name, rows = axes.yaxis.label.get_window_extent(), axes.get_window_extent()
    assert name.x1 <= min(label.get_window_extent().x0 for label in axes.get_yticklabels())
    assert rows.y0 <= name.y0
    assert name.y1 <= rows.y1


def test_bars_carry_their_steps_where_these_fit() -> None:
    crowded = [*LOG, update(0, 118, 118.1, 77, 3, 119, 119)]
    (axes,) = arrival_timeline(run_of(crowded), BLUE).axes
    assert {"20", "80", "100", "40", "96", "86", "21"} <= set(written(axes))
    assert "77" not in written(axes)


def test_groups_that_are_open_at_the_same_time_differ_in_colour() -> None:
    many = [update(client, 0, 100 + client, 9, client + 1, 100 + client, 150) for client in range(len(COLOURS))]
    (axes,) = arrival_timeline(run_of(many), BLUE).axes
    assert [bars(axes, colour) for colour in COLOURS] == [1] * len(COLOURS)


def test_a_long_run_of_many_clients_is_cut_where_bars_become_too_many() -> None:
    log = [
        update(client, 10 * turn, 10 * turn + 9, 50, turn + 1, 10 * turn + 9, 10 * turn + 11)
        for turn in range(100)
        for client in range(50)
    ]
    (axes,) = arrival_timeline(run_of(log), BLUE).axes
    assert len(axes.get_yticks()) == 20 + 1  # and the row of the groups' numbers
    assert sum(bars(axes, colour) for colour in COLOURS) == 16 * 20
    assert axes.get_xlabel().startswith("virtual time (s), the first 160 of ")


# The section


def test_only_methods_that_plan_arrivals_are_in_the_section() -> None:
    text = section(page([run_of(FIRST_ROUNDS, "fedasync"), run_of(FIRST_ROUNDS), run_of(LOG, seed=1)], "two"))
    assert re.findall(r"</span>(.*?)</h3>", text) == ["fedcompass, seed 1"]
    assert text.count("<svg ") == 1


def test_the_table_names_members_with_their_steps_and_who_was_late_in_bold() -> None:
    text = section(page([run_of(LOG)], "one")).replace("\N{NO-BREAK SPACE}", " ")
    first = re.search(r"<tr><th>1</th>(.*?)</tr>", text)
    assert first is not None
    cells = re.findall(r"<td[^>]*>(.*?)</td>", first.group(1))
    assert cells == ["1: 80, 0: 100, <strong>2: 40</strong>", "60", "70", "58", "95", "<strong>1</strong>", "–"]
    assert "2 arrival groups with 3.0 updates each; 1 of 6 came" in text
    assert "Only trainings that arrived or were lost are shown, not those in flight" in text


def test_the_table_says_who_was_lost_and_shows_groups_for_which_nobody_came() -> None:
    many = [loss(client, 140, 4, 180, 190) for client in (0, 1, 2, 0)]
    text = section(page([run_of(LOG, marks=[*LOSSES, *many])], "lost")).replace("\N{NO-BREAK SPACE}", " ")
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr><th>\d</th>(.*?)</tr>", text)]
    assert [row[-1] for row in rows] == ["–", "client 2", "clients 0, 1, 2", "4 trainings"]
    assert rows[2][:-1] == ["–", "170", "180", "–", "–", "0"]
    assert "8 trainings were lost on the way." in text


def test_the_caption_explains_tick_line_hatching_flag_and_cross() -> None:
    text = section(page([run_of(LOG)], "one"))
    caption = text[text.index("<figcaption>") : text.index("</figcaption>")]
    assert all(word in caption for word in ("tick", "line", "Hatched is what lies after the latest time", "▼", "×"))


def test_of_many_groups_the_table_has_the_first_and_the_last_and_of_many_members_the_first() -> None:
    log = [
        update(client, group, group + 9, 50, group, group + 9, group + 11)
        for group in range(1, 41)
        for client in range(30)
    ]
    text = section(page([run_of(log)], "many"))
    rows = re.findall(r"<tr><th>(.*?)</th>", text[text.index("<tbody>") :])
    assert rows == [*map(str, range(1, 7)), "…", *map(str, range(35, 41))]
    assert "and 21 more" in text


def test_times_of_a_long_run_with_short_groups_can_be_told_apart() -> None:
    log = [update(client, 5000, 5000.31, 3, 1, 5000.3, 5000.32) for client in (0, 1)]
    assert "5,000.300</td><td>5,000.320" in section(page([run_of(log)], "long"))


# Idle time


def test_idle_shares_go_from_the_slowest_device_to_the_fastest() -> None:
    (axes,) = idle_shares([run_of(FIRST_ROUNDS, per_client_idle=[0.5, 0.25, 0.125])]).axes
    (stairs,) = [patch for patch in axes.patches if isinstance(patch, StepPatch)]
    assert stairs.get_data().values[::2] == pytest.approx([12.5, 25, 50])
    assert "mean 29.2 %" in written(axes)


def test_every_method_has_a_strip_and_its_seeds_are_averaged() -> None:
    runs = [run_of(FIRST_ROUNDS, "fedavg", seed, per_client_idle=[idle] * 3) for seed, idle in ((0, 0.5), (1, 0.7))]
    runs.append(run_of(FIRST_ROUNDS, "fedasync", per_client_idle=[0.0] * 3))
    (axes,) = idle_shares(runs).axes
    assert written(axes) == ["mean 60.0 %", "mean 0.0 %"]
    assert sum(isinstance(patch, StepPatch) for patch in axes.patches) == 2


def test_thousands_of_clients_are_a_hundred_bars() -> None:
    log = [update(client, 0, client + 1, 1) for client in range(3000)]
    (axes,) = idle_shares([run_of(log, per_client_idle=[0.5] * 3000)]).axes
    (stairs,) = [patch for patch in axes.patches if isinstance(patch, StepPatch)]
    assert len(stairs.get_data().values[::2]) == 100


def test_a_report_on_runs_that_recorded_no_idle_time_goes_without() -> None:
    known, unknown = run_of(LOG, per_client_idle=[0.1] * 3), run_of(LOG, "fedavg")
    caption = "has nothing to do"
    assert caption in page([known], "known")
    assert caption not in page([unknown], "unknown")
    assert written(idle_shares([known, unknown]).axes[0]) == ["mean 10.0 %"]


def test_a_report_on_runs_in_which_nobody_waits_goes_without_idle_time() -> None:
    waiting, busy = run_of(LOG, per_client_idle=[0.0, 0.0, 0.1]), run_of(LOG, "fedavg", per_client_idle=[0.0] * 3)
    caption = "has nothing to do"
    assert caption in page([waiting, busy], "one waits")
    assert caption not in page([busy], "nobody waits")


# A real run


@pytest.fixture(scope="module")
def compass() -> Run:
    return simulate("fedcompass", clients=6, devices="normal:0.3", updates=36)


def test_a_real_run_accounts_for_every_update_and_shows_its_groups(compass: Run) -> None:
    groups = compass.arrival_groups()
    assert sum(len(group.arrivals) for group in groups) + 6 == compass.updates
    assert all(group.expected <= group.latest for group in groups)
    assert section(page([compass], "real")).count("<svg ") == 1


def test_the_table_of_methods_gives_the_idle_share(compass: Run) -> None:
    (row,) = comparison_rows([compass])
    assert row.cells["idle %"].text == f"{100 * compass.idle_share:.1f}"
    assert compass.idle_share == pytest.approx(compass.per_client("per_client_idle", -1).mean())


def test_a_real_run_with_dropouts_shows_every_loss_that_a_group_awaited(tmp_path: Path) -> None:
    devices = tmp_path / "unreliable.toml"
    devices.write_text("[dropout]\nprobability = 0.2\naway = 30.0\n")
    run = simulate("fedcompass", clients=4, devices=str(devices), updates=30)
    lost = [client for group in run.arrival_groups() for client in group.lost]
    awaited = [mark["client"] for mark in run.marks if mark["kind"] == "left" and "arrival_group" in mark]
    assert sorted(lost) == sorted(awaited) != []
    left = [mark["time"] for mark in run.marks if mark["kind"] == "left"]
    assert [time for time, _, _ in crosses(arrival_timeline(run, BLUE).axes[0])] == left
