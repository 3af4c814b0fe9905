"""A benchmark is a table of a paper: rows that are experiments, columns that are figures, the paper's numbers beside
ours. Runs that are finished are kept, so a benchmark that was cut off goes on where it was."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from polytempo.api import simulate_experiment
from polytempo.core.registry import Registry
from polytempo.report.canvas import save
from polytempo.report.figures import accuracy_over_time
from polytempo.report.page import write_report
from polytempo.report.run import Run
from polytempo.sim.experiment import make_experiment
from polytempo.sim.run import Progress

benches: Registry["Bench"] = Registry("benchmark")


@dataclass(frozen=True)
class Figure:
    """One column: a figure of a run, and how the paper gives it."""

    name: str
    title: str
    scale: float = 1.0
    digits: int = 1
    published: bool = True
    """Does the paper give it in this form?"""
    relative_to: str | None = None
    """The row by which all rows are divided, seed by seed where both have a figure; for what can only be compared as a
    ratio."""


@dataclass(frozen=True)
class Case:
    """One row."""

    label: str
    settings: Mapping[str, Any]
    paper: Mapping[str, float | None] = field(default_factory=dict)
    """The paper's figure for each column; None where the paper says that it was not reached."""


@dataclass(frozen=True)
class Bench:
    """A table of a paper."""

    name: str
    title: str
    notes: str
    """What is the same as in the paper, what is not."""
    common: Mapping[str, Any]
    """Settings of all rows."""
    quick: Mapping[str, Any]
    """Settings that replace them in the quick form."""
    cases: Sequence[Case]
    figures: Sequence[Figure]
    seeds: int = 3


def run_bench(
    bench: Bench,
    out: Path,
    quick: bool,
    seeds: int | None,
    data_dir: Path | None,
    begin: Callable[[str], None],
    progress: Callable[[Progress], None],
) -> Path:
    """Run what is missing and write the table to ``out/NAME/`` as full (or quick) .json, .md, .svg and .html; the path
    of the Markdown."""
    directory, form = out / bench.name, "quick" if quick else "full"
    runs: dict[str, list[Run]] = {case.label: [] for case in bench.cases}
    for seed in range(bench.seeds if seeds is None else seeds):
        for case in bench.cases:
            settings = {**bench.common, **case.settings, **(bench.quick if quick else {}), "seed": seed}
            if data_dir is not None:
                settings["data_dir"] = data_dir
            begin(f"{bench.name}: {case.label}, seed {seed}")
            run_directory = directory / f"runs-{form}" / f"{case.label}-seed{seed}"
            runs[case.label].append(
                simulate_experiment(make_experiment(**settings), run_directory, progress, reuse=True)
            )
    table = [_row(bench, case, runs) for case in bench.cases]
    everything = [run for rows in runs.values() for run in rows]
    (directory / f"{form}.json").write_text(json.dumps({"bench": bench.name, "quick": quick, "rows": table}, indent=1))
    (directory / f"{form}.md").write_text(_markdown(bench, table, quick, len(everything) // len(bench.cases)))
    save(accuracy_over_time(everything), directory / f"{form}.svg")
    write_report(everything, directory / f"{form}.html", bench.title)
    return directory / f"{form}.md"


def _row(bench: Bench, case: Case, runs: Mapping[str, Sequence[Run]]) -> dict[str, Any]:
    row: dict[str, Any] = {"label": case.label}
    for figure in bench.figures:
        values = [_value(run, figure) for run in runs[case.label]]
        if figure.relative_to is not None:
            bases = [_value(run, figure) for run in runs[figure.relative_to]]
            values = [v / b for v, b in zip(values, bases, strict=True) if v is not None and b]
        row[figure.title] = {"ours": values, "paper": _paper(bench, case, figure)}
    return row


def _value(run: Run, figure: Figure) -> float | None:
    value = run.result[figure.name]
    return None if value is None else value * figure.scale


def _paper(bench: Bench, case: Case, figure: Figure) -> float | None:
    value = case.paper.get(figure.name)
    if figure.relative_to is None or value is None:
        return value
    base = next(other for other in bench.cases if other.label == figure.relative_to).paper.get(figure.name)
    return None if base is None else round(value / base, 2)


def _markdown(bench: Bench, table: Sequence[Mapping[str, Any]], quick: bool, seeds: int) -> str:
    in_paper = {name for case in bench.cases for name in case.paper}
    published = [figure for figure in bench.figures if figure.published and figure.name in in_paper]
    titles = ["method"]
    for figure in bench.figures:
        titles += [figure.title, f"{figure.title}, paper"] if figure in published else [figure.title]
    lines = [
        f"# {bench.title}",
        "",
        bench.notes,
        "",
        f"{seeds} seeds, mean ± standard deviation.",
        *(_what_is_quick(bench) if quick else ()),
        "",
        "| " + " | ".join(titles) + " |",
        "|---" + "|---:" * (len(titles) - 1) + "|",
    ]
    for row in table:
        cells = [row["label"]]
        for figure in bench.figures:
            cells.append(_spread(row[figure.title]["ours"], figure))
            if figure in published:
                paper = row[figure.title]["paper"]
                cells.append("not reached" if paper is None else f"{paper:g}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _what_is_quick(bench: Bench) -> list[str]:
    changed = ", ".join(f"{name} = {value}" for name, value in bench.quick.items())
    return ["", f"Quick form, so not the paper's set-up: {changed}. The paper's figures are for the full one."]


def _spread(values: Sequence[float | None], figure: Figure) -> str:
    reached = [value for value in values if value is not None]
    if not reached:
        return "not reached" if figure.relative_to is None else "–"
    text = f"{mean(reached):.{figure.digits}f}"
    if len(reached) > 1:
        text += f" ± {stdev(reached):.{figure.digits}f}"
    return text if len(reached) == len(values) else f"{text} ({len(reached)} of {len(values)} reached)"
