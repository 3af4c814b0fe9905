"""The report's section on arrival groups: their timeline, and the first and last of them in a table."""

from collections.abc import Sequence
from functools import partial
from math import floor, isnan, log10, nan
from statistics import median

from polytempo.report.drawing.arrivals import arrival_timeline
from polytempo.report.facts.arrivals import ArrivedGroup
from polytempo.report.facts.numbers import NOTHING
from polytempo.report.facts.runs import Runs
from polytempo.report.run import Run
from polytempo.report.sections.markup import Drawing, Piece, Section, bold, html_note, html_table, run_heading

LISTED = 12  # groups in a table
MEMBERS = "client: steps"
NAMED = 10  # members in a row
LOST = 3  # who was lost, named in a row
CAPTION = (
    "One row per client, one bar per update from dispatch to arrival, in the colour of its arrival group; the number "
    "on it is its steps. The tick under it is when its group was expected, and the line from there how long the group "
    "waits at most, until its latest time; an update that comes between the two is not late. Hatched is what lies "
    "after the latest time, and ▼ is where such an update arrived. × is where a training was lost, in the colour of "
    "the group that awaited it."
)


def section(runs: Runs) -> Section:
    """For contenders that plan arrivals, the arrival groups of the first seed that has some."""
    pieces: list[Piece] = []
    for contender, run in runs.first_with(Run.arrival_groups):
        draw = partial(arrival_timeline, run, contender.colour)
        drawing = Drawing(runs.named("arrivals", contender), draw, CAPTION, wide=True)
        pieces += [run_heading(contender, run), drawing, _table(run)]
    return Section("Arrival groups", pieces)


def _table(run: Run) -> str:
    groups = run.arrival_groups()
    titles = ["group", MEMBERS, "expected s", "latest s", "first arrival s", "last arrival s", "late", "lost"]
    decimals = _decimals(groups)
    body = [_row(group, decimals) for group in groups]
    if len(body) > LISTED:
        body[LISTED // 2 : -LISTED // 2] = [["…", *[""] * (len(titles) - 1)]]
    updates = sum(len(group.arrivals) for group in groups)
    late = sum(len(group.late()) for group in groups)
    lost = sum(len(group.lost) for group in groups)
    note = (
        f"{len(groups):,} arrival groups with {updates / len(groups):.1f} updates each; {late:,} of {updates:,} came "
        f"after the latest time of their group{' (bold)' if late else ''}. {_losses(lost)}Only trainings that arrived "
        "or were lost are shown, not those in flight at the end of the run."
    )
    return html_table(titles, body, words=[MEMBERS]) + html_note(note)


def _row(group: ArrivedGroup, decimals: int) -> list[str]:
    first_and_last = [group.arrivals[index].arrived if group.arrivals else nan for index in (0, -1)]
    times = (group.expected, group.latest, *first_and_last)
    late = len(group.late())
    return [
        str(group.number),
        _members(group) or NOTHING,
        *(NOTHING if isnan(time) else f"{time:,.{decimals}f}" for time in times),
        bold(str(late)) if late else "0",
        _lost(group.lost),
    ]


def _lost(clients: Sequence[int]) -> str:
    """Few by name, many by number."""
    if len(clients) > LOST:
        return f"{len(clients):,} trainings"
    names = ", ".join(map(str, clients))
    return f"client{'s' if len(clients) > 1 else ''}\N{NO-BREAK SPACE}{names}" if clients else NOTHING


def _losses(lost: int) -> str:
    if not lost:
        return ""
    return "One training was lost on the way. " if lost == 1 else f"{lost:,} trainings were lost on the way. "


def _decimals(groups: Sequence[ArrivedGroup]) -> int:
    """So many that expected and latest can be told apart, however long the run was."""
    gaps = [group.latest - group.expected for group in groups if group.latest > group.expected]
    return min(max(1 - floor(log10(median(gaps))), 0), 6) if gaps else 1


def _members(group: ArrivedGroup) -> str:
    """Who arrived with how many steps, in order of arrival, those who were late in bold; of many, as many as a row
    holds."""
    shown = group.arrivals if len(group.arrivals) <= NAMED else group.arrivals[: NAMED - 1]
    late = group.late()
    texts = [f"{member.client}:\N{NO-BREAK SPACE}{member.steps}" for member in shown]
    texts = [bold(text) if member in late else text for text, member in zip(texts, shown, strict=True)]
    more = len(group.arrivals) - len(shown)
    return ", ".join(texts) + (f" and {more:,} more" if more else "")
