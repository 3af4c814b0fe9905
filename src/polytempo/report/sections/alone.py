"""The report's section on who is better off than alone."""

from polytempo.report.drawing.figures import better_off_than_alone
from polytempo.report.facts.contenders import better_off
from polytempo.report.facts.numbers import percent
from polytempo.report.facts.runs import Runs
from polytempo.report.sections.markup import Section, html_figure, html_note, html_table, named

HEADING = "Better off than alone?"
CAPTION = "The share of clients that gain by taking part: a long coloured bar is good, dark grey is who loses."
NOTE = "Every client’s final accuracy against what it reaches alone (Standalone, same data, same seed)."


def section(runs: Runs) -> Section:
    """The shares of clients that end better, equal and worse; nothing where no run of Standalone is beside them."""
    found = ((contender, better_off(contender, runs.all)) for contender in runs.contenders)
    compared = [(contender, shares) for contender, shares in found if shares is not None]
    if not compared:
        return Section(HEADING, "")
    body = [[named(contender), *map(percent, (s.better, s.equal, s.worse))] for contender, s in compared]
    table = html_table(["method", "better %", "equal %", "worse %"], body)
    figure = html_figure(better_off_than_alone(runs.all), "alone", CAPTION)
    return Section(HEADING, f'<div class="figures"><div>{table}{html_note(NOTE)}</div>{figure}</div>\n')
