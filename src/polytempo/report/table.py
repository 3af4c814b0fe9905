"""The comparison of methods as a table: for the terminal, for Markdown, and for the HTML page."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import rich
import rich.box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from polytempo.report.facts.contenders import Method, better_off, has_target, mean, methods_of
from polytempo.report.run import Run

NOTHING = "–"


@dataclass(frozen=True)
class Cell:
    """What is shown, the number behind it (NaN for none), and whether it is the best of its column."""

    text: str
    value: float = math.nan
    best: bool = False


@dataclass(frozen=True)
class ComparisonRow:
    """One method; its cells by column title, the same titles in every row."""

    method: str
    cells: dict[str, Cell]


@dataclass(frozen=True)
class _Column:
    title: str
    cell: Callable[[Method, Sequence[Run]], Cell]
    best: Literal["highest", "lowest", None] = None


def comparison_rows(runs: Sequence[Run]) -> list[ComparisonRow]:
    """One row per method, means over its seeds. A column that nobody has a figure for is left out, so is the time to
    target when no run had a target, and so are clusters where everybody shares one model or nobody does."""
    methods = methods_of(runs)
    columns: dict[str, list[Cell]] = {}
    for column in _COLUMNS + (_CLUSTER_COLUMNS if any(map(Run.has_clusters, runs)) else ()):
        cells = [column.cell(method, runs) for method in methods]
        if any(cell.text != NOTHING for cell in cells):
            columns[column.title] = _with_best(cells, column.best)
    return [
        ComparisonRow(method.label, {title: cells[i] for title, cells in columns.items()})
        for i, method in enumerate(methods)
    ]


def rich_table(runs: Sequence[Run], width: int | None = None) -> RenderableType:
    """For the terminal. Methods are rows where that fits the width (the terminal's by default), else columns, in as
    many tables as they need."""
    rows = comparison_rows(runs)
    width = rich.get_console().width if width is None else width
    wide = _methods_as_rows(rows)
    if _full_width(wide) <= width:
        return wide
    blocks = [rows[:1]]
    for row in rows[1:]:
        if _full_width(_methods_as_columns([*blocks[-1], row])) <= width:
            blocks[-1].append(row)
        else:
            blocks.append([row])
    return Group(*map(_methods_as_columns, blocks))


def markdown_table(runs: Sequence[Run]) -> str:
    """For documents: a Markdown table with the best of each column in bold, ending in a line break."""
    rows = comparison_rows(runs)
    titles = list(rows[0].cells)
    lines = [["method", *titles], ["---", *("---:" for _ in titles)]]
    for row in rows:
        cells = [f"**{cell.text}**" if cell.best else cell.text for cell in row.cells.values()]
        lines.append([row.method.replace("|", "\\|"), *cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def amount(value: float) -> str:
    """A number as short as it stays useful: three digits that count, thousands with commas."""
    if math.isnan(value):
        return NOTHING
    decimals = 0 if value == 0 else min(max(2 - math.floor(math.log10(abs(value))), 0), 3)
    return f"{value:,.{decimals}f}"


def percent(value: float) -> str:
    """A share of one as a percentage with one decimal, without the sign."""
    return NOTHING if math.isnan(value) else f"{100 * value:.1f}"


def _full_width(table: Table) -> int:
    """How wide it must be for nothing to be wrapped or cut."""
    console = rich.get_console()
    return console.measure(table, options=console.options.update(max_width=10_000)).maximum


def _methods_as_rows(rows: list[ComparisonRow]) -> Table:
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("method", no_wrap=True, vertical="bottom")
    for title in rows[0].cells:
        table.add_column(_two_lines(title), justify="right", no_wrap=True, vertical="bottom")
    for row in rows:
        table.add_row(Text(row.method), *(_styled(cell) for cell in row.cells.values()))
    return table


def _methods_as_columns(rows: list[ComparisonRow]) -> Table:
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("method", overflow="fold", vertical="bottom")
    for row in rows:
        table.add_column(Text(_two_lines(row.method)), justify="right", overflow="fold", vertical="bottom")
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


def _with_best(cells: list[Cell], best: Literal["highest", "lowest", None]) -> list[Cell]:
    values = [cell.value for cell in cells if not math.isnan(cell.value)]
    if best is None or len(cells) < 2 or not values:
        return cells
    winner = max(values) if best == "highest" else min(values)
    return [Cell(cell.text, cell.value, math.isclose(cell.value, winner)) for cell in cells]


def _accuracy(method: Method, runs: Sequence[Run]) -> Cell:
    values = method.figures("accuracy")
    text = percent(mean(values))
    if np.count_nonzero(~np.isnan(values)) > 1:
        text += f" ± {percent(float(np.nanstd(values, ddof=1)))}"
    return Cell(text, mean(values))


def _share(name: str) -> Callable[[Method, Sequence[Run]], Cell]:
    return lambda method, runs: Cell(percent(method.mean(name)), method.mean(name))


def _amount(name: str, unit: float = 1.0) -> Callable[[Method, Sequence[Run]], Cell]:
    return lambda method, runs: Cell(amount(method.mean(name) / unit), method.mean(name) / unit)


def _count(name: str) -> Callable[[Method, Sequence[Run]], Cell]:
    def cell(method: Method, runs: Sequence[Run]) -> Cell:
        value = method.mean(name)
        return Cell(NOTHING if math.isnan(value) else f"{value:,.0f}", value)

    return cell


def _time_to_target(method: Method, runs: Sequence[Run]) -> Cell:
    """The mean over the seeds that reached it. Only a method that reached it with every seed can be the best."""
    values = method.figures("time_to_target")
    reached = int(np.count_nonzero(~np.isnan(values)))
    if not reached:
        return Cell("not reached" if has_target(method) else NOTHING)
    if reached < len(values):
        return Cell(f"{amount(mean(values))} ({reached} of {len(values)})")
    return Cell(amount(mean(values)), mean(values))


def _downloads(method: Method, runs: Sequence[Run]) -> Cell:
    """Nothing to see where everybody downloads one model per order, as FedAsync does."""
    if all(run.downloads_ratio in (None, 1) for run in runs):
        return Cell(NOTHING)
    return Cell(_rounded(method.mean("downloads_ratio"), 3), method.mean("downloads_ratio"))


def _of_device(name: str) -> Callable[[Method, Sequence[Run]], Cell]:
    """Nothing to see where devices have no types: that would be one client."""

    def cell(method: Method, runs: Sequence[Run]) -> Cell:
        typed = any(run.result.get("accuracy_per_device") for run in method.runs)
        return Cell(percent(method.mean(name)), method.mean(name)) if typed else Cell(NOTHING)

    return cell


def _better_off(method: Method, runs: Sequence[Run]) -> Cell:
    shares = better_off(method, runs)
    return Cell(percent(shares.better), shares.better) if shares else Cell(NOTHING)


def _divergence(method: Method, runs: Sequence[Run]) -> Cell:
    return Cell(_rounded(method.mean("mixture_kl"), 3), method.mean("mixture_kl"))


def _uniform_divergence(method: Method, runs: Sequence[Run]) -> Cell:
    """What an estimate is measured against: nothing to see where a method estimates nothing."""
    if math.isnan(method.mean("mixture_kl")):
        return Cell(NOTHING)
    return Cell(_rounded(method.mean("mixture_kl_uniform"), 3), method.mean("mixture_kl_uniform"))


def _clusters(method: Method, runs: Sequence[Run]) -> Cell:
    return Cell(_rounded(method.mean("clusters"), 1).removesuffix(".0"), method.mean("clusters"))


def _fit(name: str) -> Callable[[Method, Sequence[Run]], Cell]:
    """Purity or adjusted Rand index; nothing to see where every client is a cluster of its own."""

    def cell(method: Method, runs: Sequence[Run]) -> Cell:
        value = mean(np.array([run.figure(name) for run in method.runs if run.figure("clusters") < run.clients()]))
        return Cell(_rounded(value, 2), value)

    return cell


def _rounded(value: float, decimals: int) -> str:
    return NOTHING if math.isnan(value) else f"{value:.{decimals}f}"


_COLUMNS = (
    _Column("accuracy %", _accuracy, best="highest"),
    _Column("own model %", _share("accuracy_trained"), best="highest"),
    _Column("slowest fifth %", _share("accuracy_slowest_fifth"), best="highest"),
    _Column("fastest fifth %", _share("accuracy_fastest_fifth"), best="highest"),
    _Column("slowest device %", _of_device("accuracy_slowest_device"), best="highest"),
    _Column("fastest device %", _of_device("accuracy_fastest_device"), best="highest"),
    _Column("after exchange %", _share("accuracy_after"), best="highest"),
    _Column("cluster %", _share("cluster_accuracy"), best="highest"),
    _Column("mixture KL", _divergence, best="lowest"),
    _Column("uniform KL", _uniform_divergence),
    _Column("better off than alone %", _better_off, best="highest"),
    _Column("time to target s", _time_to_target, best="lowest"),
    _Column("virtual time s", _amount("virtual_time")),
    _Column("updates", _count("updates")),
    _Column("staleness", _amount("mean_staleness")),
    _Column("idle %", _share("idle_share")),
    _Column("MB up", _amount("bytes_up", 1e6)),
    _Column("MB down", _amount("bytes_down", 1e6)),
    _Column("peak MB/min up", _amount("peak_up", 1e6)),
    _Column("peak MB/min down", _amount("peak_down", 1e6)),
    _Column("downloads vs FedAsync", _downloads),
    _Column("wall s", _amount("wall_seconds")),
)

_CLUSTER_COLUMNS = (
    _Column("clusters", _clusters),
    _Column("purity", _fit("purity"), best="highest"),
    _Column("ARI", _fit("ari"), best="highest"),
)
