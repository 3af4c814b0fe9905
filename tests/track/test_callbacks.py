"""Callbacks are told everything in order, change nothing, and answer for their own errors."""

import json
import sys
from typing import Any

import pytest

from polytempo import Callback, simulate
from polytempo.cli import main as cli
from polytempo.core.errors import UserError
from polytempo.report.run import Run
from polytempo.track.callback import CallbackError
from support.watching import SMALL, Diary, cut_off, gone_on, small


def test_updates_and_evaluations_are_told_in_order_from_beginning_to_end():
    diary = Diary()
    run = simulate("fedasync", callbacks=[diary], **SMALL)
    assert diary.lines[0] == ("begin", 0, 0)
    assert diary.lines[-1] == ("end", run.digest)
    told = diary.lines[1:-1]
    assert [line[1:] for line in told if line[0] == "update"] == [(r["client"], r["time"]) for r in run.update_log]
    evaluations = [(row["updates"], row["accuracy_used"]) for row in run.evaluations]
    assert [line[1:] for line in told if line[0] == "evaluation"] == evaluations
    counted = 0
    for line in told:
        counted += line[0] == "update"
        assert line[0] == "update" or line[1] == counted


def test_two_evaluations_after_the_same_update_are_both_told():
    diary = Diary()
    run = simulate("fedasync", callbacks=[diary], clients=4, steps=1, time=1e-6)
    assert [row["updates"] for row in run.evaluations] == [0, 0]
    assert [line[0] for line in diary.lines] == ["begin", "evaluation", "evaluation", "end"]


class Vandal(Callback):
    def on_begin(self, start: Any) -> None:
        start.config["parameters"]["mixing"] = 0

    def on_update(self, row: Any) -> None:
        row["client"] = -1

    def on_evaluation(self, row: Any) -> None:
        row["per_client_used"][:] = 0
        row["accuracy_per_cluster"] = None


def test_a_callback_cannot_change_a_run(tmp_path):
    plain = simulate("casa", out=tmp_path / "plain", **SMALL)
    watched = simulate("casa", out=tmp_path / "watched", callbacks=[Vandal()], **SMALL)
    assert watched.digest == plain.digest
    for file in ("config.json", "evaluations.jsonl", "updates.jsonl"):
        assert (tmp_path / "watched" / file).read_bytes() == (tmp_path / "plain" / file).read_bytes()


class Failing(Callback):
    def on_update(self, row: Any) -> None:
        if row["client"] == 2:
            raise ZeroDivisionError("no more")


def test_an_exception_says_whose_it_is_and_the_run_goes_on_where_it_was(tmp_path):
    diary = Diary()
    with pytest.raises(CallbackError, match=r"test_callbacks.Failing fails at on_update \(update \d+, of") as caught:
        simulate("fedasync", out=tmp_path, callbacks=[diary, Failing()], **SMALL)
    assert "ZeroDivisionError: no more" in str(caught.value)
    assert 'raise ZeroDivisionError("no more")' in str(caught.value)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert diary.lines[-1] == ("stop",)
    known = len([line for line in diary.lines if line[0] == "update"])
    again = Diary()
    assert gone_on(tmp_path, [again]).digest == simulate("fedasync", **SMALL).digest
    assert again.lines[0][:2] == ("begin", known)
    assert len([line for line in again.lines if line[0] == "update"]) == SMALL["updates"] - known


class FailingAtTheEnd(Callback):
    def on_end(self, run: Run) -> None:
        raise SystemExit(3)


def test_an_error_at_the_end_leaves_a_finished_run(tmp_path):
    with pytest.raises(CallbackError, match="FailingAtTheEnd fails at on_end: SystemExit: 3"):
        simulate("fedasync", out=tmp_path, callbacks=[FailingAtTheEnd()], **SMALL)
    assert Run.load(tmp_path).updates == SMALL["updates"]
    assert (tmp_path / "report.html").exists()


class FailingTwice(Failing):
    def on_stop(self) -> None:
        raise OSError("nothing to close")


def test_an_error_at_stopping_does_not_hide_what_stopped_the_run():
    with (
        pytest.warns(UserWarning, match="FailingTwice fails at on_stop: OSError"),
        pytest.raises(CallbackError, match="ZeroDivisionError"),
    ):
        simulate("fedasync", callbacks=[FailingTwice()], **SMALL)


def test_after_a_power_cut_callbacks_are_told_again_of_what_no_checkpoint_has(tmp_path):
    first, second = Diary(), Diary()
    cut_off(tmp_path, [first], update=10)
    run = gone_on(tmp_path, [second])
    _, known, evaluated = second.lines[0]
    assert 0 < known <= 10
    assert evaluated == 1 + known // 4
    updates = [line for line in first.lines if line[0] == "update"][:known]
    updates += [line for line in second.lines if line[0] == "update"]
    assert [line[1:] for line in updates] == [(row["client"], row["time"]) for row in run.update_log]


@pytest.mark.parametrize(
    ("given", "came"),
    [([print], "of type builtin"), ([Diary], "the class Diary"), ([Diary(), None], r"callbacks\[1\]")],
)
def test_what_is_no_callback_is_refused(given, came):
    with pytest.raises(UserError, match=came):
        simulate("fedasync", callbacks=given, **SMALL)


OWN = """
from polytempo import Callback

class Counting(Callback):
    def __init__(self):
        self.updates = 0

    def on_update(self, row):
        self.updates += 1

    def on_end(self, run):
        with open("counted.txt", "a") as file:
            file.write(f"{run.strategy} {run.seed} {self.updates}\\n")

one_for_all = Counting()
nothing = 3
broken = lambda: 1 / 0
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_callbacks.py").write_text(OWN)
    return tmp_path


def called(monkeypatch, *words):
    arguments = [*words, "--clients", "4", "--updates", "8", "--steps", "1", "--quiet", "--engine", "eager"]
    monkeypatch.setattr(sys, "argv", ["polytempo", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


def test_a_callback_by_import_path_watches_each_run_of_a_comparison(own, monkeypatch):
    words = ["compare", "fedasync", "fedavg", "--seeds", "1", "--out", "both"]
    assert called(monkeypatch, *words, "--callback", "own_callbacks.py:Counting") == 0
    assert (own / "counted.txt").read_text() == "fedasync 0 8\nfedavg 0 8\n"
    assert called(monkeypatch, *words, "--callback", "own_callbacks:Counting") == 0  # finished runs are told of nothing
    assert len((own / "counted.txt").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--callback", "own_callbacks.py:nothing"], "callback 'own_callbacks.py:nothing' is of type int. Expected"),
        (["--callback", "own_callbacks.py:broken"], "cannot be made: ZeroDivisionError"),
        (["--callback", "own_callbacks.py:Countin"], "Did you mean 'Counting'?"),
        (["--track", "tensorbord"], "Did you mean 'tensorboard'? Known: tensorboard, mlflow, wandb."),
    ],
)
def test_a_wrong_callback_is_one_message_before_anything_is_run(own, monkeypatch, capsys, option, message):
    assert called(monkeypatch, "run", "fedasync", "--out", "here", *option) == 2
    assert message in capsys.readouterr().err
    assert not (own / "here").exists()


def test_an_experiment_file_cannot_name_callbacks(tmp_path, monkeypatch):
    (tmp_path / "one.toml").write_text('strategy = "fedasync"\ncallback = "x.py:Y"\n')
    assert called(monkeypatch, "run", str(tmp_path / "one.toml")) == 2


def test_the_configuration_knows_nothing_of_callbacks(tmp_path):
    simulate("fedasync", out=tmp_path, callbacks=[Diary()], **SMALL)
    assert json.loads((tmp_path / "config.json").read_text()).keys() >= small().settings().keys()
    assert "callbacks" not in (tmp_path / "config.json").read_text()
