"""``polytempo sweep``."""

import json

SHORT = ("--clients", 4, "--updates", 8, "--seeds", 2, "--engine", "eager")


def test_a_sweep_prints_a_table_and_what_was_chosen(polytempo, tmp_path):
    code, out, _ = polytempo("sweep", "fedasync", "--grid", "mixing=0.2,0.6", "--grid", "lr=0.05", *SHORT, "--out", "s")
    assert code == 0
    assert "validation %" in out
    assert "Best by validation: mixing 0." in out
    assert (tmp_path / "s/heat-map.png").stat().st_size > 2000
    assert len(list((tmp_path / "s").glob("*/seed-*/result.json"))) == 4


def test_a_sweep_of_an_experiment_file_prints_json_and_goes_on(polytempo, tmp_path):
    (tmp_path / "e.toml").write_text('strategy = "fedbuff"\nlr = 0.1\n[parameters]\nbuffer_size = 3\n')
    command = ("sweep", "e.toml", "--grid", "buffer_size=2,4", *SHORT, "--out", "s", "--json", "--quiet")
    code, out, err = polytempo(*command, "--heat-map", "m.pdf")
    assert (code, err) == (0, "")
    found = json.loads(out.splitlines()[-1])
    assert [one["settings"] for one in found["trials"]] == [{"buffer_size": 2}, {"buffer_size": 4}]
    assert found == json.loads((tmp_path / "s/sweep.json").read_text())
    assert (tmp_path / "m.pdf").exists()
    assert polytempo(*command)[1] == out
    code, out, _ = polytempo(*command[:-2], "--csv", "--quiet")
    assert (code, out.splitlines()[0]) == (0, "buffer_size,mean,deviation,low,high,seeds,best,test")
    assert len(out.splitlines()) == 3
    code, out, _ = polytempo("report", "s", "--out", "r.html")
    assert code == 0
    assert "buffer size 4" in out


def test_an_unknown_name_in_a_grid_ends_with_one_message(polytempo):
    code, out, err = polytempo("sweep", "fedasync", "--grid", "mixin=0.1", *SHORT)
    assert (code, out) == (2, "")
    assert "Did you mean 'mixing'?" in err


def test_a_bad_value_in_a_grid_ends_with_one_message(polytempo, tmp_path):
    code, _, err = polytempo("sweep", "fedasync", "--grid", "lr=0.1,-3", *SHORT, "--out", "s")
    assert code == 2
    assert "With lr -3: Learning rate" in err
    assert not (tmp_path / "s").exists()


def test_a_figure_of_an_unknown_format_is_refused_before_anything_runs(polytempo, tmp_path):
    command = ("sweep", "fedasync", "--grid", "lr=0.1", *SHORT, "--out", "s", "--heat-map", "map.docx")
    code, _, err = polytempo(*command)
    assert code == 2
    assert "cannot save a plot as map.docx" in err
    assert not (tmp_path / "s").exists()
