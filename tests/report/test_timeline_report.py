"""Who trained when, where clients hold their model before they ask."""

from matplotlib.axes import Axes

from polytempo.report.drawing.timeline import HELD_HEIGHT, timeline
from polytempo.report.facts.speed import slowest_to_fastest
from polytempo.report.page import page
from polytempo.sim.records.evaluation import Stop
from polytempo.strategies import make_strategy
from polytempo.testing import simulator
from support.runs import made_run

HELD = {"time": 64.0, "client": 0, "began": 0.0, "asked": 60.0, "steps": 2, "staleness": 0}
AT_ONCE = {"time": 10.0, "client": 1, "began": 0.0, "steps": 2, "staleness": 0}


def bars_of(axes: Axes) -> list[tuple[float, float, float]]:
    """From when, until when and how high."""
    boxes = [patch.get_path().get_extents() for patch in axes.patches]
    return [(box.x0, box.x1, round(box.height, 6)) for box in boxes]


def test_an_update_says_when_its_client_asked_only_if_the_client_held_its_model_first() -> None:
    for asking, held in (("every:50", True), (None, False)):
        sim = simulator(make_strategy("fedasync", {}), clients=1, stop=Stop(updates=2), asking=asking)
        sim.run()
        asked = [mark["time"] for mark in sim.history.marks if mark["kind"] == "ask"]
        assert [row["asked"] for row in sim.history.updates if "asked" in row] == asked[:2]
        assert bool(asked) == held


def test_the_time_in_which_a_client_holds_its_model_is_a_thin_line_before_the_bar_of_its_training() -> None:
    run = made_run({}, {"strategy": "cdfl", "seed": 0}, [], [HELD])
    (axes,) = timeline(run).axes
    assert bars_of(axes) == [(0, 60, HELD_HEIGHT), (60, 64, 0.72)]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["holds its model"]
    assert "client holds its model" in page([run], "held")


def test_without_asking_a_bar_is_as_long_as_the_update_took() -> None:
    run = made_run({}, {"strategy": "cdfl", "seed": 0}, [], [AT_ONCE])
    (axes,) = timeline(run).axes
    assert bars_of(axes) == [(0, 10, 0.72)]
    assert "holds its model" not in page([run], "at once")


def test_holding_a_model_for_long_does_not_make_a_device_slow() -> None:
    run = made_run({}, {"strategy": "cdfl", "seed": 0}, [], [AT_ONCE, HELD])
    assert slowest_to_fastest(run, 2).tolist() == [1, 0]
