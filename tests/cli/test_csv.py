"""``--csv`` prints a table that a spreadsheet takes, and nothing else, on stdout."""

import csv
import io
import json

SMALL = ("--clients", 4, "--updates", 8, "--steps", 1, "--engine", "eager")


def read(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_compare_and_report_print_one_row_per_method(polytempo, tmp_path, monkeypatch):
    monkeypatch.setattr("polytempo.report.page.write_report", lambda runs, path, *more: path)  # it takes a while
    code, out, err = polytempo("compare", "fedasync", "standalone", "--seeds", 1, "--out", "c", "--csv", *SMALL)
    assert code == 0
    rows = read(out)
    assert [row["method"] for row in rows] == ["fedasync", "standalone"]
    kept = json.loads((tmp_path / "c/fedasync-seed0/result.json").read_text())
    assert float(rows[0]["accuracy_used"]) == kept["accuracy_used"]
    assert sum(float(rows[0][name]) for name in ("better_off", "equal", "worse_off")) == 1
    assert rows[1]["better_off"] == ""
    assert "Report: c/report.html" in err
    assert polytempo("report", "c", "--out", "again.html", "--csv")[1] == out


def test_quiet_leaves_the_table_alone(polytempo, monkeypatch):
    monkeypatch.setattr("polytempo.report.page.write_report", lambda runs, path, *more: path)
    code, out, err = polytempo("run", "fedasync", "--out", "r", "--csv", "--quiet", "--clip", 3, *SMALL)
    assert (code, len(out.splitlines()), err) == (0, 2, "")


def test_two_forms_on_stdout_are_one_too_many(polytempo, tmp_path):
    code, _, err = polytempo("run", "fedasync", "--csv", "--json", "--out", "r", *SMALL)
    assert (code, (tmp_path / "r").exists()) == (2, False)
    assert "--json and --csv both print to stdout" in err


def test_lists_have_names_and_summaries(polytempo):
    code, out, _ = polytempo("list", "models", "--csv")
    assert code == 0
    assert {"mlp", "cnn"} <= {row["name"] for row in read(out)}
    assert all(row["summary"] for row in read(out))
    assert polytempo("list", "modells", "--csv")[0] == 2
    assert "casa-table1" in {row["name"] for row in read(polytempo("bench", "list", "--csv")[1])}
