"""A run of a report: read from its directory, summed up in a line, plotted."""

import json
from pathlib import Path

import pytest

from polytempo.core.errors import UserError
from polytempo.report import run as run_module
from polytempo.report.page import page
from polytempo.report.run import Run
from support.runs import made_run
from support.synthetic_runs import synthetic_run


def write_run(run: Run, directory: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(run.config))
    (directory / "result.json").write_text(json.dumps(dict(run.result)))
    for name, rows in (("evaluations", run.evaluations), ("updates", run.update_log), ("marks", run.marks)):
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory


def test_a_run_read_from_its_directory_is_the_run_that_was_written(tmp_path: Path) -> None:
    run = synthetic_run("fedbuff")
    read = Run.load(write_run(run, tmp_path / "run"))
    assert (read.config, read.result, read.evaluations) == (run.config, run.result, run.evaluations)
    assert (read.update_log, read.marks) == (run.update_log, run.marks)


def test_every_figure_of_the_result_is_an_attribute() -> None:
    run = synthetic_run()
    assert {name: getattr(run, name) for name in run.result} == run.result
    assert run.updates == 400 == len(run.update_log)


def test_a_run_says_who_it_is_in_one_line() -> None:
    run = synthetic_run(seed=3)
    assert repr(run).startswith(f"<Run fedasync, seed 3: accuracy {100 * run.accuracy:.1f}%")
    assert "accuracy unknown" in made_run({}, dict.fromkeys(run.result)).summary()


def test_a_run_without_marks_loads(tmp_path: Path) -> None:
    directory = write_run(synthetic_run(), tmp_path / "run")
    (directory / "marks.jsonl").unlink()
    assert len(Run.load(directory).marks) == 0


@pytest.mark.parametrize(
    ("missing", "words"),
    [("config.json", "no config.json"), ("updates.jsonl", "no updates.jsonl"), ("result.json", "let it finish")],
)
def test_a_directory_that_is_no_run_is_an_error_that_names_what_is_missing(
    tmp_path: Path, missing: str, words: str
) -> None:
    directory = write_run(synthetic_run(updates=5), tmp_path / "run")
    (directory / missing).unlink()
    with pytest.raises(UserError, match=words):
        Run.load(directory)


def test_a_figure_that_an_older_version_did_not_write_is_none(tmp_path: Path) -> None:
    directory = write_run(synthetic_run(updates=5), tmp_path / "run")
    figures = json.loads((directory / "result.json").read_text())
    del figures["refused"]
    (directory / "result.json").write_text(json.dumps(figures))
    older = Run.load(directory)
    assert older.refused is None
    assert "<h1>older</h1>" in page([older], "older")


def test_a_missing_directory_and_a_cut_line_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a directory"):
        Run.load(tmp_path / "nowhere")
    directory = write_run(synthetic_run(updates=5), tmp_path / "run")
    whole = (directory / "updates.jsonl").read_text()
    (directory / "updates.jsonl").write_text(whole[:-10])
    with pytest.raises(UserError, match=r"updates\.jsonl, line 5"):
        Run.load(directory)


@pytest.mark.parametrize("name", ["result.json", "updates.jsonl"])
def test_a_file_that_cannot_be_read_is_not_taken_for_a_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    directory = write_run(synthetic_run("fedasync", 0), tmp_path / "run")
    whole = run_module.read_plain

    def refuse(path: Path, *most: int) -> bytes:
        if path.name == name:
            raise PermissionError(13, "Permission denied")
        return whole(path, *most)

    monkeypatch.setattr(run_module, "read_plain", refuse)
    with pytest.raises(UserError, match=rf"{name} cannot be read \(Permission denied\): is it a plain file"):
        Run.load(directory)


def test_plot_saves_a_file_and_refuses_an_unknown_ending(tmp_path: Path) -> None:
    run = synthetic_run()
    assert len(run.plot(tmp_path / "plot.svg").axes) == 4
    assert (tmp_path / "plot.svg").read_text().rstrip().endswith("</svg>")
    with pytest.raises(UserError, match="png"):
        run.plot(tmp_path / "plot.xyz")
