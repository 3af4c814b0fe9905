"""The comparison of contenders as a table: for the terminal, for Markdown, and for the HTML page."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import rich
import rich.box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from polytempo.learn.metrics import Scale
from polytempo.report.differences import difference_cells, difference_figures, differences, heading, notes, titles
from polytempo.report.facts.alone import better_off, comparisons, remarks
from polytempo.report.facts.contenders import (
    AGAIN,
    ALONE,
    Contender,
    contenders_of,
    has_target,
    mean,
)
from polytempo.report.facts.numbers import NOTHING, amount, percent, rounded
from polytempo.report.facts.scales import common_scale, in_column
from polytempo.report.facts.significance import Difference, PerSeed, is_best, per_run
from polytempo.report.run import Run
from polytempo.sim.result import Figure, Result
from polytempo.strategies import RECONSTRUCTED, is_reconstructed

_ACCURACIES = (Result.accuracy, Result.accuracy_trained, Result.accuracy_used)
NAME = 0.5  # of a terminal's width that the names of contenders may take


@dataclass(frozen=True)
class Cell:
    """What is shown, the number behind it (NaN for none), and whether it is shown to be the best of its column."""

    text: str
    value: float = math.nan
    best: bool = False


@dataclass(frozen=True)
class ComparisonRow:
    """One contender; its cells by column title, the same titles in every row."""

    contender: str
    cells: dict[str, Cell]


Make = Callable[[Contender, Sequence[Run]], Cell]
Best = Literal["highest", "lowest", None]
Values = Callable[[Sequence[Run]], PerSeed]


@dataclass(frozen=True)
class _Column:
    title: str
    cell: Make
    best: Best = None
    values: Values | None = None
    """One number per run, by which the best is tested over the seeds."""
    scored: bool = False
    """Is it named, and the best of it chosen, by the metric?"""


def comparison_rows(runs: Sequence[Run]) -> list[ComparisonRow]:
    """One row per contender, means over its seeds. A column that nobody has a figure for is left out. So is the time to
    target when no run had a target, refused updates when there were none, and clusters where everybody shares one model
    or nobody does."""
    contenders, scale = contenders_of(runs), common_scale(runs)
    columns: dict[str, list[Cell]] = {}
    for column in _COLUMNS + (_CLUSTER_COLUMNS if any(map(Run.has_clusters, runs)) else ()):
        cells = [column.cell(contender, runs) for contender in contenders]
        if any(cell.text != NOTHING for cell in cells):
            title = column.title.replace("%", scale.unit) if column.scored else column.title
            best = scale.best if column.scored else column.best
            columns[title] = _with_best(cells, best, column.values, contenders, runs)
    return [
        ComparisonRow(contender.label, {title: cells[i] for title, cells in columns.items()})
        for i, contender in enumerate(contenders)
    ]


def comparison_figures(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """For scripts: for each contender, by its label, the three accuracies and the shares of clients better off, equal
    and worse off than alone, all from 0 to 1 and means over seeds. None where there is no run of Standalone.
    ``against_best`` is its difference to the best, None for the best itself."""
    found: dict[str, dict[str, Any]] = {}
    tested = {one.contender: difference_figures(one) for one in differences(runs)}
    for contender in contenders_of(runs):
        means = {figure.name: contender.mean(figure.name) for figure in _ACCURACIES}
        shares = better_off(contender, runs)
        found[contender.label] = {
            **{name: None if math.isnan(value) else value for name, value in means.items()},
            "better_off": None if shares is None else shares.better,
            "equal": None if shares is None else shares.equal,
            "worse_off": None if shares is None else shares.worse,
            "against_best": tested.get(contender.label),
        }
    return found


def rich_table(runs: Sequence[Run], width: int | None = None) -> RenderableType:
    """For the terminal, within a width (the terminal's by default): one table if it fits, with contenders as rows or
    else as columns. Otherwise contenders are rows of several tables, each with as many columns as fit. Under it the
    differences to the best, and what a reader has to know of comparisons and of reconstructed methods."""
    width = rich.get_console().width if width is None else width
    found = differences(runs)
    below = [*notes(found), *remarks(runs)] if found else remarks(runs)
    below += [RECONSTRUCTED] if any(is_reconstructed(run.strategy) for run in runs) else []
    scale = common_scale(runs)
    tested = [Text(f"{heading(found, scale)}:"), _tables(_difference_rows(found, scale), width)] if found else []
    return Group(_tables(comparison_rows(runs), width), *tested, *map(Text, below))


def _difference_rows(found: Sequence[Difference], scale: Scale) -> list[ComparisonRow]:
    rows = []
    for one in found:
        _, *cells = zip(titles(scale), difference_cells(one, scale), strict=True)
        rows.append(ComparisonRow(one.contender, {title: Cell(text) for title, text in cells}))
    return rows


def _tables(rows: list[ComparisonRow], width: int) -> RenderableType:
    titles = list(rows[0].cells)
    for table in (_contenders_as_rows(rows, titles), _contenders_as_columns(rows)):
        if full_width(table) <= width:
            return table
    blocks = [titles[:1]]
    for title in titles[1:]:
        if full_width(_contenders_as_rows(rows, [*blocks[-1], title], width)) <= width:
            blocks[-1].append(title)
        else:
            blocks.append([title])
    return Group(*(_contenders_as_rows(rows, block, width) for block in blocks))


def markdown_table(runs: Sequence[Run]) -> str:
    """For documents: a Markdown table in which the best of a column is bold where it is more than chance, ending in a
    line break."""
    rows = comparison_rows(runs)
    titles = list(rows[0].cells)
    lines = [["method", *titles], ["---", *("---:" for _ in titles)]]
    for row in rows:
        cells = [f"**{cell.text}**" if cell.best else cell.text for cell in row.cells.values()]
        lines.append([row.contender.replace("|", "\\|"), *cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def full_width(table: Table) -> int:
    """How wide it must be for nothing to be wrapped or cut."""
    console = rich.get_console()
    return console.measure(table, options=console.options.update(max_width=10_000)).maximum


def _contenders_as_rows(rows: list[ComparisonRow], titles: Sequence[str], width: int | None = None) -> Table:
    """With a width, long names are folded so that they leave room for figures."""
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    longest = None if width is None else max(int(NAME * width), 1)
    table.add_column("method", overflow="fold", max_width=longest, vertical="bottom")
    for title in titles:
        table.add_column(_two_lines(title), justify="right", no_wrap=True, vertical="bottom")
    for row in rows:
        table.add_row(Text(row.contender), *(_styled(row.cells[title]) for title in titles))
    return table


def _contenders_as_columns(rows: list[ComparisonRow]) -> Table:
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("method", overflow="fold", vertical="bottom")
    for row in rows:
        table.add_column(Text(_two_lines(row.contender)), justify="right", overflow="fold", vertical="bottom")
    for title in rows[0].cells:
        table.add_row(title, *(_styled(row.cells[title]) for row in rows))
    return table


def _styled(cell: Cell) -> Text:
    return Text(cell.text, style="bold" if cell.best else "")


def _two_lines(title: str) -> str:
    """Break a title between words where the longer line is shortest; a single word stays one line."""
    words = title.split()
    breaks = [(" ".join(words[:i]), " ".join(words[i:])) for i in range(1, len(words) + 1)]
    return "\n".join(min(breaks, key=lambda lines: max(map(len, lines)))).rstrip()


def _with_best(
    cells: list[Cell], best: Best, values: Values | None, contenders: Sequence[Contender], runs: Sequence[Run]
) -> list[Cell]:
    """Mark the best, where it is better than every other over the seeds."""
    means = np.array([cell.value for cell in cells])
    if best is None or values is None or np.count_nonzero(~np.isnan(means)) < 2:
        return cells
    winner = int(np.nanargmax(means) if best == "highest" else np.nanargmin(means))
    if not is_best(contenders, winner, values(runs)):
        return cells
    return [Cell(cell.text, cell.value, i == winner) for i, cell in enumerate(cells)]


def _of(figure: Figure[Any], cell: Make | None = None) -> _Column:
    """The column of a figure: its title, its unit and which value is best are the figure's own."""
    values = per_run(figure.name)
    return _Column(figure.title, cell or _mean(figure), figure.best, lambda runs: values, figure.unit == "score")


def _mean(figure: Figure[Any], decimals: int | None = None) -> Make:
    """The mean over seeds, with so many decimals or as many as its unit wants."""

    def cell(contender: Contender, runs: Sequence[Run]) -> Cell:
        value = contender.mean(figure.name)
        text = in_column(figure, contender.runs[0].scale, value) if decimals is None else rounded(value, decimals)
        return Cell(text, value)

    return cell


def _accuracy(contender: Contender, runs: Sequence[Run]) -> Cell:
    values, scale = contender.figures("accuracy"), contender.runs[0].scale
    text = in_column(Result.accuracy, scale, mean(values))
    if np.count_nonzero(~np.isnan(values)) > 1:
        text += f" ± {scale.number(float(np.nanstd(values, ddof=1)))}"
    return Cell(text, mean(values))


def _of_device(figure: Figure[Any]) -> Make:
    """Nothing to see where devices have no types: that would be one client."""

    def cell(contender: Contender, runs: Sequence[Run]) -> Cell:
        typed = any(run.accuracy_per_device for run in contender.runs)
        return _mean(figure)(contender, runs) if typed else Cell(NOTHING)

    return cell


def _uniform_divergence(contender: Contender, runs: Sequence[Run]) -> Cell:
    """What an estimate is measured against: nothing to see where a method estimates nothing."""
    if math.isnan(contender.mean("mixture_kl")):
        return Cell(NOTHING)
    return _mean(Result.mixture_kl_uniform, 3)(contender, runs)


def _than_alone(contender: Contender, runs: Sequence[Run]) -> Cell:
    """The best has the most clients better off, less those worse off. Standalone is not compared with itself, and what
    chance does is never the best."""
    strategy = contender.runs[0].strategy
    shares = None if strategy == ALONE else better_off(contender, runs)
    if shares is None:
        return Cell(NOTHING)
    text = " / ".join(map(percent, (shares.better, shares.equal, shares.worse)))
    return Cell(text, math.nan if strategy == AGAIN else shares.better - shares.worse)


def _leads_over_alone(runs: Sequence[Run]) -> PerSeed:
    """For every run the share of clients better off than alone, less that of those worse off."""

    def values(contender: Contender) -> dict[Run, float]:
        found = dict.fromkeys(contender.runs, math.nan)
        if contender.runs[0].strategy not in (ALONE, AGAIN):
            shares = ((run, comparison.shares()) for run, comparison in comparisons(contender, runs))
            found |= {run: of.better - of.worse for run, of in shares if of is not None}
        return found

    return values


def _time_to_target(contender: Contender, runs: Sequence[Run]) -> Cell:
    """The mean over the seeds that reached it. Only a method that reached it with every seed can be the best."""
    values = contender.figures("time_to_target")
    reached = int(np.count_nonzero(~np.isnan(values)))
    if not reached:
        return Cell("not reached" if has_target(contender) else NOTHING)
    if reached < len(values):
        return Cell(f"{amount(mean(values))} ({reached} of {len(values)})")
    return Cell(amount(mean(values)), mean(values))


def _refused(contender: Contender, runs: Sequence[Run]) -> Cell:
    """Nothing to see where training never diverged."""
    return _mean(Result.refused)(contender, runs) if any(run.refused for run in runs) else Cell(NOTHING)


def _downloads(contender: Contender, runs: Sequence[Run]) -> Cell:
    """Nothing to see where everybody downloads one model per order, as FedAsync does."""
    if all(run.downloads_ratio in (None, 1) for run in runs):
        return Cell(NOTHING)
    return _mean(Result.downloads_ratio, 3)(contender, runs)


def _clusters(contender: Contender, runs: Sequence[Run]) -> Cell:
    return Cell(rounded(contender.mean("clusters"), 1).removesuffix(".0"), contender.mean("clusters"))


def _fit(figure: Figure[Any]) -> Make:
    """Purity or adjusted Rand index; nothing to see where every client is a cluster of its own."""

    def cell(contender: Contender, runs: Sequence[Run]) -> Cell:
        clustered = [run for run in contender.runs if run.figure("clusters") < run.clients()]
        value = mean(np.array([run.figure(figure.name) for run in clustered]))
        return Cell(rounded(value, 2), value)

    return cell


_COLUMNS = (
    _of(Result.accuracy, _accuracy),
    _of(Result.accuracy_trained),
    _of(Result.accuracy_used),
    _Column("better / equal / worse than alone %", _than_alone, "highest", _leads_over_alone),
    _of(Result.accuracy_slowest_fifth),
    _of(Result.accuracy_fastest_fifth),
    _of(Result.accuracy_slowest_device, _of_device(Result.accuracy_slowest_device)),
    _of(Result.accuracy_fastest_device, _of_device(Result.accuracy_fastest_device)),
    _of(Result.accuracy_after),
    _of(Result.cluster_accuracy),
    _of(Result.mixture_kl, _mean(Result.mixture_kl, 3)),
    _of(Result.mixture_kl_uniform, _uniform_divergence),
    _of(Result.time_to_target, _time_to_target),
    _of(Result.virtual_time),
    _of(Result.updates),
    _of(Result.refused, _refused),
    _of(Result.mean_staleness),
    _of(Result.idle_share),
    _of(Result.bytes_up),
    _of(Result.bytes_down),
    _of(Result.peak_up),
    _of(Result.peak_down),
    _of(Result.downloads_ratio, _downloads),
    _of(Result.wall_seconds),
)

_CLUSTER_COLUMNS = (
    _of(Result.clusters, _clusters),
    _of(Result.purity, _fit(Result.purity)),
    _of(Result.ari, _fit(Result.ari)),
)
