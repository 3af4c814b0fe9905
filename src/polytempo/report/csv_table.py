"""Tables as CSV, for spreadsheets and scripts: numbers in full, under the names that result.json has for them."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from polytempo.report.differences import difference_figures, differences
from polytempo.report.facts.alone import better_off
from polytempo.report.facts.contenders import ALONE, Contender, contenders_of
from polytempo.report.facts.significance import Difference
from polytempo.report.run import Run
from polytempo.sim.result import FIGURES

DIFFERENCE = {
    "reference": "reference",
    "difference": "mean",
    "low": "low",
    "high": "high",
    "p": "p",
    "verdict": "verdict",
    "seeds_needed": "seeds_needed",
}
"""Columns about the difference to the best contender, and the fields of it that they hold."""


def comparison_csv(runs: Sequence[Run]) -> str:
    """One row per contender: its label, the number of its seeds, and the mean over them of every figure of result.json
    that is a number; shares of clients better off, equal and worse off than alone where there is a run of Standalone;
    of several contenders the difference in the used metric to the best. A column that nobody has a figure for is left
    out, and a cell is empty where a contender has none."""
    contenders = contenders_of(runs)
    against = {one.contender: _difference(one) for one in differences(runs)}
    nothing = dict.fromkeys(DIFFERENCE) if against else {}
    rows = [_row(contender, runs) | against.get(contender.label, nothing) for contender in contenders]
    columns = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    return csv_text(columns, ([row[name] for name in columns] for row in rows))


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A header and rows, each ending in a line break. Nothing, None, is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def bench_csv(table: Mapping[str, Any]) -> str:
    """A table of a benchmark as its .json holds it: for each figure mean and deviation over the seeds that have
    it, and the paper's where it gives one."""
    rows: list[dict[str, Any]] = []
    for given in table["rows"]:
        row: dict[str, Any] = {"method": given["label"], "seeds": len(given["seeds"])}
        for title, cell in given.items():
            if title not in ("label", "seeds"):
                row |= _measured(title, cell)
        rows.append(row)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return csv_text(columns, ([row.get(name) for name in columns] for row in rows))


def _measured(title: str, cell: Mapping[str, Any]) -> dict[str, Any]:
    ours = [value for value in cell["ours"] if value is not None]
    mean = fmean(ours) if ours else None
    spread = stdev(ours) if len(ours) > 1 else None
    paper = {f"{title}, paper": cell["paper"]} if "paper" in cell else {}
    return {title: mean, f"{title}, deviation": spread, **paper}


def _row(contender: Contender, runs: Sequence[Run]) -> dict[str, Any]:
    numbers = {name: _mean(contender, name) for name in FIGURES if name not in ("strategy", "seed")}
    shares = None if contender.runs[0].strategy == ALONE else better_off(contender, runs)
    return {
        "method": contender.label,
        "seeds": len(contender.runs),
        **numbers,
        "better_off": None if shares is None else shares.better,
        "equal": None if shares is None else shares.equal,
        "worse_off": None if shares is None else shares.worse,
    }


def _difference(row: Difference) -> dict[str, Any]:
    known = difference_figures(row)
    return {name: known[field] for name, field in DIFFERENCE.items()}


def _mean(contender: Contender, name: str) -> float | None:
    """None where no run has the figure, or where it is no number."""
    values = [run.result[name] for run in contender.runs]
    if not all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in values):
        return None
    mean = contender.mean(name)
    return None if math.isnan(mean) else mean
