"""The figures of a run: one list from which everything that shows them is made."""

import pytest

from polytempo import simulate
from polytempo.sim.result import FIGURES, Result, figures_table
from support import ROOT
from support.runs import made_run, result_of


def test_the_reference_page_lists_every_figure_with_its_meaning_and_unit():
    assert f"\n\n{figures_table()}\n" in (ROOT / "docs/reference/command-line.md").read_text()


def test_every_figure_has_a_meaning_that_is_a_sentence():
    assert all(figure.meaning.endswith(".") and "|" not in figure.meaning for figure in FIGURES.values())


def test_a_result_has_all_figures_and_no_others():
    with pytest.raises(TypeError, match="accuracy"):
        Result(**{name: None for name in FIGURES if name != "accuracy"})
    with pytest.raises(TypeError, match="acuracy"):
        result_of(acuracy=0.5)


def test_a_figure_is_an_attribute_and_a_key_of_result_and_run_and_its_description_on_the_class():
    result = result_of(held_back=3)
    run = made_run({}, result)
    assert result.held_back == result["held_back"] == run.held_back == 3
    assert {name: getattr(run, name) for name in FIGURES} == dict(result)
    assert Result.held_back.unit == "count"
    assert result_of(accuracy=0.5) == result_of(accuracy=0.5) != result_of(accuracy=0.6)


def test_figures_do_not_change():
    with pytest.raises(AttributeError, match="does not change"):
        result_of(accuracy=0.5).accuracy = 1.0


def test_refused_updates_are_counted_and_are_no_updates():
    run = simulate("fedasync", clients=6, updates=12, lr=1e6)
    assert run.refused == sum(mark["kind"] == "refused" for mark in run.marks) > 0
    assert run.updates == len(run.update_log) == 12
