"""The report's section on results: one row of figures per contender."""

from html import escape

from polytempo.learn.metrics import Scale
from polytempo.report.differences import meaning_of_bold
from polytempo.report.facts.runs import Runs
from polytempo.report.facts.scales import common_scale
from polytempo.report.sections.markup import Section, bold, html_note, html_table, named
from polytempo.report.table import comparison_rows
from polytempo.sim.result import Result
from polytempo.strategies import RECONSTRUCTED, is_reconstructed

# Remarks for a reader who meets a column, by its title.
EXPLAINED = {
    Result.accuracy_trained.title: "“Own model” is what a client holds right after its last local training.",
    Result.accuracy_used.title: (
        "“Used” is the model that a client works with: what its rule makes of its own and the served one; without a "
        "rule the served one."
    ),
    Result.accuracy_after.title: (
        "“After exchange”, “cluster”, “mixture KL” and “uniform KL” are explained under Exchanges."
    ),
    Result.refused.title: "Where updates hold NaN or Inf, training diverges: lower the learning rate.",
    Result.downloads_ratio.title: (
        "“Downloads vs FedAsync” is what clients downloaded, as a multiple of one model per order."
    ),
}


def section(runs: Runs) -> Section:
    """The comparison, with a remark on each column that needs one."""
    rows = comparison_rows(runs.all)
    titles = list(rows[0].cells)
    body = [
        [named(contender), *(bold(cell.text) if cell.best else escape(cell.text) for cell in row.cells.values())]
        for contender, row in zip(runs.contenders, rows, strict=True)
    ]
    most = max(len(contender.runs) for contender in runs.contenders)
    scale = common_scale(runs.all)
    name = scale.name[0].upper() + scale.name[1:]
    better = "" if scale == Scale() else f" {'Higher' if scale.higher_is_better else 'Lower'} is better."
    notes = [f"{name} is the mean over clients of the {scale.name} on their own test data of the model each is served."]
    notes[0] += better
    notes += [note for title, note in EXPLAINED.items() if title.replace("%", scale.unit) in titles]
    notes += _samples(runs)
    if any(is_reconstructed(run.strategy) for run in runs.all):
        notes.append(RECONSTRUCTED)
    if most > 1:
        notes.append(f"Means over up to {most} seeds; ± is the standard deviation between them.")
    if len(runs.contenders) > 1:
        notes.append(meaning_of_bold(runs.contenders))
    return Section("Results", [html_table(["method", *titles], body), html_note(" ".join(notes))])


def _samples(runs: Runs) -> list[str]:
    """Where figures are those of some clients only: of how many, and how far they may be from those of all."""
    errors = [(run, error) for run in runs.all if (error := run.standard_error()) is not None]
    if not errors:
        return []
    sizes = " or ".join(f"{size:,}" for size in sorted({len(run.evaluations[-1]["sample"]) for run, _ in errors}))
    run, error = max(errors, key=lambda found: found[1])
    most = f"{run.scale.factor * error:.2g} {run.scale.unit}".rstrip()
    return [
        f"Evaluated on a random sample of {sizes} of {run.clients():,} clients, the same at every evaluation: the "
        f"standard error of the used models' {run.scale.name} is at most {most}."
    ]
