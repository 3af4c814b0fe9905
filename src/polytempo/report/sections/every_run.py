"""The report's section on every run: its main figures, what it cost, and its digest."""

from html import escape

from polytempo.report.facts.contenders import as_text
from polytempo.report.facts.numbers import NOTHING
from polytempo.report.facts.runs import Runs
from polytempo.report.facts.scales import common_scale, in_column, titled
from polytempo.report.sections.markup import Section, html_note, html_table, named
from polytempo.sim.result import Result

FIGURES = (
    *(Result.accuracy, Result.time_to_target, Result.updates, Result.client_steps),
    *(Result.train_seconds, Result.overhead_seconds),
)


def section(runs: Runs) -> Section:
    """One row per run, and with which versions they were made."""
    body = []
    for contender in runs.contenders:
        for run in contender.runs:
            numbers = [in_column(figure, run.scale, run.figure(figure.name)) for figure in FIGURES]
            digest = f"<code>{escape(as_text(run.digest)[:12]) or NOTHING}</code>"
            body.append([named(contender), escape(as_text(run.seed)), *numbers, digest])
    versions = runs.all[0].config.get("versions") or {}
    made_with = ", ".join(f"{name} {as_text(version)}" for name, version in versions.items())
    note = html_note(f"Made with {escape(made_with)}.") if made_with else ""
    table = html_table(
        ["method", "seed", *(titled(figure, common_scale(runs.all)) for figure in FIGURES), "digest"], body
    )
    return Section("Every run", [table, note])
