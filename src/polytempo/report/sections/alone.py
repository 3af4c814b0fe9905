"""The report's section on who is better off than alone."""

from functools import partial
from html import escape

import numpy as np

from polytempo.learn.metrics import Scale
from polytempo.report.drawing.alone import full_height, gains_over_alone
from polytempo.report.facts.alone import RunStandings, Standings, comparisons, remarks, together
from polytempo.report.facts.contenders import AGAIN, ALONE, Contender
from polytempo.report.facts.numbers import amount, percent
from polytempo.report.facts.runs import MOST, Runs
from polytempo.report.facts.scales import common_scale, in_column
from polytempo.report.run import Run
from polytempo.report.sections.markup import Drawing, Section, html_note, html_table, named, run_heading
from polytempo.sim.result import Result

HEADING = "Better off than alone?"
TEST = (
    "For every client the model that it uses is compared with the one that it trains alone (Standalone, same data, "
    "same seed), on the client’s own test rows and row by row. Better or worse off is what a one-sided exact test "
    "(McNemar) finds at the 5 % level; where the metric is not right or wrong, Wilcoxon’s signed-rank test on what "
    "it says. All others are equal."
)
WORDS = {1: "better", 0: "equal", -1: "worse"}
ROWS = 200  # clients in the table of a run


def section(runs: Runs) -> Section:
    """Who ends better off, equal and worse off; nothing where no run of Standalone is beside the others."""
    others = [contender for contender in runs.contenders if contender.runs[0].strategy != ALONE]
    found = [(contender, comparisons(contender, runs.all)) for contender in others]
    compared = [(contender, each) for contender, each in found if each]
    notes = "".join(html_note(escape(remark)) for remark in remarks(runs.all))
    if not compared:
        return Section(HEADING, [notes])
    rows = [(contender, together([comparison for _, comparison in each])) for contender, each in compared]
    scale = common_scale(runs.all)
    draw = partial(gains_over_alone, [(_label(contender), clients) for contender, clients in rows])
    drawing = Drawing("alone", draw, _caption([clients for _, clients in rows], scale), wide=True)
    details = "".join(_every_client(contender, *each[0]) for contender, each in compared[:MOST])
    return Section(HEADING, [drawing, _counts(rows, scale), html_note(TEST), notes, _folded(details)])


def _label(contender: Contender) -> str:
    """Standalone again is named as what it shows."""
    return f"{contender.label}: what chance does" if contender.runs[0].strategy == AGAIN else contender.label


def _points(scale: Scale) -> str:
    """What gains are counted in."""
    return "points" if scale.share else scale.name


def _caption(rows: list[Standings], scale: Scale) -> str:
    return (
        "One bar per client, upwards what it gains over training alone and downwards what it loses: blue is a gain and "
        "vermilion a loss that chance does not explain, grey is equal. A full bar is "
        f"{amount(scale.factor * full_height(rows))} {_points(scale)} or more. Triangles mark slow devices."
    )


def _counts(rows: list[tuple[Contender, Standings]], scale: Scale) -> str:
    titles = ["method", "better off", "equal", "worse off", "better %", "equal %", "worse %"]
    titles.append(f"mean gain, {_points(scale)}")
    titles += ["slow: better off", "slow: equal", "slow: worse off"] if any(c.slow.any() for _, c in rows) else []
    body = []
    for contender, clients in rows:
        counts, total = clients.counts(), max(len(clients.gains), 1)
        gain = _gain(float(clients.gains.mean()), scale) if len(clients.gains) else "–"
        cells = [*map(str, counts), *(percent(count / total) for count in counts), gain]
        if len(titles) > len(cells) + 1:
            cells += map(str, clients.of_slow().counts())
        named_as = named(contender) + escape(_label(contender).removeprefix(contender.label))
        body.append([named_as, *cells])
    return html_table(titles, body)


def _gain(gain: float, scale: Scale) -> str:
    return f"{100 * gain:+.1f}" if scale.share else f"{gain:+.4g}"


def _folded(details: str) -> str:
    return f"<details><summary>Every client</summary>\n{details}</details>\n"


def _every_client(contender: Contender, run: Run, comparison: RunStandings) -> str:
    """Its three accuracies and what it has alone, sorted by gain."""
    scale, served, used = run.scale, run.final_per_client(), run.final_per_client("used")
    own = run.final_per_client("own") if len(run.final_per_client("own")) else np.full(len(used), np.nan)
    order = np.argsort(comparison.gains, kind="stable")
    body = []
    for at in order[:ROWS]:
        client, gain = int(comparison.clients[at]), float(comparison.gains[at])
        alone = used[client] - gain if scale.higher_is_better else used[client] + gain
        scores = [in_column(Result.accuracy, scale, of) for of in (served[client], own[client], used[client], alone)]
        device = "slow" if comparison.slow[at] else ""
        verdict = WORDS[int(comparison.verdicts[at])]
        body.append([str(client), *scores, _gain(gain, scale), verdict, device])
    of_models = [f"{model} {scale.unit}" for model in ("served", "own model", "used", "alone")]
    titles = ["client", *of_models, f"gain, {_points(scale)}", "than alone", "device"]
    more = html_note(f"The {ROWS} clients that gain least, of {len(order):,}.") if len(order) > ROWS else ""
    return run_heading(contender, run) + html_table(titles, body) + more
