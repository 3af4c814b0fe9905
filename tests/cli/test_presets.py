"""Presets of a method, from a file to what a run keeps."""

import json


def test_a_preset_in_an_experiment_file_sets_parameters_and_the_run_keeps_them(polytempo, tmp_path):
    (tmp_path / "e.toml").write_text(
        'strategy = "casa"\nclients = 4\nupdates = 6\n[parameters]\npreset = "paper"\ncoverage = 0.7\n'
    )
    assert polytempo("run", "e.toml", "--quiet", "--out", "r")[0] == 0
    kept = json.loads((tmp_path / "r/config.json").read_text())["parameters"]
    expected = {"preset": "paper", "gamma": 0.15, "memory": 0.0, "coverage": 0.7, "patience": None}
    assert expected.items() <= kept.items()
    assert "preset = settled" in polytempo("list", "strategies")[1]
