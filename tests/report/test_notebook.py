"""Runs as values of a notebook's cells, and progress in one line."""

import re
import sys
from html.parser import HTMLParser
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from polytempo import compare, simulate, sweep
from polytempo.report.notebook import in_notebook, runs_html
from polytempo.report.table import comparison_rows
from support.watching import SMALL


class Balanced(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.ids, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_startendtag(self, tag, attrs):
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def parsed(html):
    page = Balanced()
    page.feed(html)
    assert not page.open
    assert len(page.ids) == len(set(page.ids))
    return page


@pytest.fixture(scope="module")
def runs():
    return [simulate(name, seed=seed, **SMALL) for name in ("fedasync", "fedavg") for seed in (0, 1)]


def test_a_run_shows_its_summary_its_figures_and_a_plot(runs):
    html = runs[0]._repr_html_()
    text = "".join(parsed(html).text)
    assert runs[0].summary() in text
    assert f"{100 * runs[0].accuracy:.1f}" in text
    assert html.count("<svg") == 1
    assert "http" not in re.sub(r'xmlns[:\w]*="[^"]*"', "", html)  # nothing is fetched


def test_several_runs_are_one_table(runs):
    html = runs_html(runs)
    text = "".join(parsed(html).text)
    assert "2 methods, means over up to 2 seeds" in text
    assert html.count("<tr><th><span") == 2
    best = sum(cell.best for row in comparison_rows(runs) for cell in row.cells.values())
    assert html.count("<strong>") == best


def test_a_sweep_is_a_table_with_the_best_in_bold_and_a_figure():
    found = sweep("fedasync", grid={"mixing": [0.2, 0.6], "lr": [0.05]}, seeds=1, **SMALL)
    html = found._repr_html_()
    assert f"Best by validation: {found.best.words}" in "".join(parsed(html).text)
    assert (html.count("<svg"), html.count("<strong>")) == (1, 6)


def test_plots_of_several_cells_do_not_share_ids(runs):
    ids = [parsed(html).ids for html in (runs[0]._repr_html_(), runs[1]._repr_html_(), runs_html(runs))]
    assert len(set.union(*map(set, ids))) == sum(map(len, ids))


def test_a_strategy_of_any_name_is_text(runs):
    from dataclasses import replace

    run = replace(runs[0], config={**runs[0].config, "strategy": "<b>&x"})
    assert "<b>" not in runs_html([run, runs[1]])


@pytest.fixture
def notebook(monkeypatch):
    """A stand-in for IPython in a kernel: what was displayed, and what each display was changed to."""
    shown: list[list[str]] = []

    def display(html, display_id):
        shown.append([html])
        return SimpleNamespace(update=shown[-1].append)

    ipython, displaying = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())
    displaying.HTML, displaying.display = str, display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", displaying)
    return shown


def test_a_notebook_shows_one_line_that_is_gone_at_the_end(notebook, monkeypatch):
    monkeypatch.setattr("time.perf_counter", iter(range(10**6)).__next__)  # a second between any two looks
    simulate("fedasync", **SMALL)
    (line,) = notebook
    assert "preparing" in line[1]
    assert "fedasync <progress" in line[2]
    assert "100%, 24 updates" in line[-2]
    assert line[-1] == ""


def test_a_comparison_has_one_line_for_all_runs(notebook):
    compare(["fedasync", "fedavg"], seeds=1, **SMALL)
    (line,) = notebook
    begun = [html for html in line if "preparing" in html]
    assert ["fedasync-seed0 (1 of 2)" in begun[0], "fedavg-seed0 (2 of 2)" in begun[1]] == [True, True]
    assert line[-1] == ""


def test_a_sweep_says_how_many_runs_are_done(notebook):
    sweep("fedasync", grid={"mixing": [0.2, 0.6]}, seeds=1, **SMALL)
    (line,) = notebook
    assert ["2 of 2 runs, mixing=0.6" in line[-2], line[-1]] == [True, ""]
    sweep("fedasync", grid={"mixing": [0.2]}, seeds=1, progress=False, **SMALL)
    assert len(notebook) == 1


def test_progress_names_the_metric(notebook, monkeypatch):
    monkeypatch.setattr("time.perf_counter", iter(range(10**6)).__next__)
    x = np.linspace(0, 1, 80)[:, None]
    simulate("fedasync", data=(x, x[:, 0]), goal="regression", partition="iid", **SMALL)
    assert re.search(r"24 updates, virtual [\d,]+ s, mae \d", notebook[0][-2])


def test_progress_that_is_turned_off_or_given_shows_nothing_of_ours(notebook):
    told = []
    simulate("fedasync", progress=False, **SMALL)
    simulate("fedasync", progress=told.append, **SMALL)
    assert notebook == []


def test_a_terminal_is_no_notebook(monkeypatch):
    assert not in_notebook()
    ipython = ModuleType("IPython")
    ipython.get_ipython = lambda: None
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert not in_notebook()


def test_a_plot_is_a_picture_without_pyplot(runs):
    assert runs[0].plot()._repr_png_().startswith(b"\x89PNG")
