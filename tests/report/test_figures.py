"""Figures by name, for papers: sizes, formats, and looks that can be told apart."""

import itertools
import re
import sys

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from polytempo.cli import main as cli
from polytempo.core.errors import UserError
from polytempo.report.comparison import Comparison
from polytempo.report.facts.contenders import COLOURS, contenders_of, looks
from support.synthetic_runs import synthetic_run

# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
LACKS = {
    "none": np.eye(3),
    "red": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "green": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
}
TO_XYZ = np.array(
    ((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.0721750), (0.0193339, 0.1191920, 0.9503041))
)


def lab(colour, lacks):
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(LACKS[lacks]) @ linear, 0, 1)
    x, y, z = np.cbrt(TO_XYZ @ seen / (0.95047, 1, 1.08883))
    return np.array((116 * y - 16, 500 * (x - y), 200 * (y - z)))


@pytest.mark.parametrize("lacks", LACKS)
def test_twelve_colours_can_be_told_apart_whatever_cones_a_reader_lacks(lacks):
    seen = [lab(colour, lacks) for colour in COLOURS]
    assert len(seen) == 12
    assert min(np.linalg.norm(one - other) for one, other in itertools.combinations(seen, 2)) > 17


def test_no_two_of_twenty_four_methods_look_the_same():
    assert len({looks(number) for number in range(24)}) == 24


def test_many_methods_have_markers_few_have_none():
    few = [synthetic_run("fedasync", lr=0.01 * i) for i in range(6)]
    assert {contender.marker for contender in contenders_of(few)} == {""}
    many = contenders_of([*few, synthetic_run("fedbuff")])
    assert len({contender.marker for contender in many}) == 7


def test_contenders_have_names_fit_for_files():
    runs = [synthetic_run("fedasync", lr=lr) for lr in (0.1, -0.1)]
    assert [contender.name for contender in contenders_of(runs)] == ["fedasync-lr-0-1", "fedasync-lr-0-1-2"]


@pytest.mark.parametrize(("width", "narrow", "wide"), [("page", 5, 10), ("single", 3.5, 7.16), ("double", 7.16, 7.16)])
def test_figures_fit_the_columns_of_a_paper(several, width, narrow, wide):
    comparison = Comparison(several)
    assert comparison.plot(kind="accuracy-time", width=width).get_figwidth() == narrow
    assert comparison.plot(kind="timeline-fedavg", width=width).get_figwidth() == pytest.approx(wide)


def test_letters_have_their_size_in_every_width(several):
    comparison = Comparison(several)
    for width in ("page", "single", "double"):
        (axes,) = comparison.plot(width=width).axes
        texts = [axes.xaxis.label, *axes.get_legend().get_texts(), *axes.get_xticklabels()]
        assert min(text.get_fontsize() for text in texts) >= 7.5


def test_every_figure_of_the_page_is_a_file_by_its_name(several, tmp_path):
    comparison = Comparison([several[0], several[3]])
    paths = comparison.save_figures(tmp_path / "figures", "png")
    page = comparison.report(tmp_path / "page.html").read_text()
    assert {path.stem for path in paths} == set(re.findall(r'id="([a-z0-9-]+?)-figure_1"', page))
    assert set((tmp_path / "figures").iterdir()) == set(paths)


@pytest.mark.parametrize(("form", "begins"), [("pdf", b"%PDF"), ("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_a_figure_has_the_format_of_its_ending(several, tmp_path, form, begins):
    several[0].plot(tmp_path / f"figure.{form}", kind="staleness")
    assert (tmp_path / f"figure.{form}").read_bytes().startswith(begins)


@pytest.mark.parametrize("form", ["pdf", "svg"])
def test_the_same_runs_give_the_same_files(several, tmp_path, form):
    one, other = tmp_path / f"one.{form}", tmp_path / f"other.{form}"
    for path in (one, other):
        Comparison(several[:4]).plot(path)
    assert one.read_bytes() == other.read_bytes()


def test_a_run_has_an_overview_and_every_figure_of_its_page(several):
    assert several[0].kinds()[:3] == ["overview", "accuracy-time", "accuracy-updates"]
    assert several[0].plot().axes
    assert several[0].plot(kind="timeline").axes


def test_what_there_is_not_is_said_with_what_there_is(several, tmp_path):
    comparison = Comparison(several)
    with pytest.raises(UserError, match="Did you mean 'staleness'"):
        comparison.plot(kind="stalenes")
    with pytest.raises(UserError, match="Did you mean 'single'"):
        comparison.plot(width="singel")
    with pytest.raises(UserError, match="Unknown format 'jpg'"):
        comparison.save_figures(tmp_path, "jpg")


def test_the_report_command_saves_figures(tmp_path, monkeypatch, capsys):
    import polytempo

    monkeypatch.setattr("polytempo.report.page.write_report", lambda runs, path, *more: path)  # it takes a while
    polytempo.simulate("fedasync", clients=4, updates=8, out=tmp_path / "run")
    words = ["report", str(tmp_path / "run"), "--out", str(tmp_path / "r.html"), "--figures", str(tmp_path / "figures")]
    monkeypatch.setattr(sys, "argv", ["polytempo", *words, "--format", "svg", "--width", "double"])
    with pytest.raises(SystemExit, match="0"):
        cli.main()
    assert "figures saved in" in capsys.readouterr().out
    assert (tmp_path / "figures/accuracy-time.svg").exists()
