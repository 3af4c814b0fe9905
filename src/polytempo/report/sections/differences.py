"""The report's section on differences: is the best method really better than the others?"""

from html import escape

from polytempo.report.differences import difference_cells, heading, notes, titles
from polytempo.report.facts.runs import Runs
from polytempo.report.facts.scales import common_scale
from polytempo.report.facts.significance import differences_between
from polytempo.report.sections.markup import Section, bold, html_note, html_table, named


def section(runs: Runs) -> Section:
    """Every method against the best, seed by seed; nothing for one method."""
    found = differences_between(runs.contenders)
    if not found:
        return Section("Differences", [])
    scale = common_scale(runs.all)
    contenders = {contender.label: contender for contender in runs.contenders}
    body = []
    for row in found:
        cells = [bold(cell) if row.verdict == "worse" else escape(cell) for cell in difference_cells(row, scale)[1:]]
        body.append([named(contenders[row.contender]), *cells])
    above = html_note(escape(f"{heading(found, scale)}."))
    return Section("Differences", [above, html_table(titles(scale), body), html_note(escape(" ".join(notes(found))))])
