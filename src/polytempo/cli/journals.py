"""``polytempo status`` and ``polytempo replay``: what a service's directory tells."""

import json
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from polytempo.cli.options import AllowImport, Json, Set, parse_assignments
from polytempo.core.errors import UserError
from polytempo.core.registry import names_code
from polytempo.report.facts.numbers import counted
from polytempo.serve.journal.opening import existing_journal, recorded_settings, settings_in
from polytempo.serve.journal.replay import replay as replay_journal
from polytempo.serve.journal.replay import what_if
from polytempo.serve.paths import JOURNAL
from polytempo.serve.server.meters import STRATEGY
from polytempo.serve.server.status import NotStartedError, read_status
from polytempo.strategies.base.served import served_models

SILENT_SECONDS = 5.0
"""After which it is told that nothing was heard of a server."""


def status(
    directory: Annotated[Path, typer.Option("--dir", help="the service's directory")] = Path("federation"),
    check: Annotated[bool, typer.Option("--check", help="print nothing; exit with 1 if it is not running")] = False,
    as_json: Json = False,
) -> None:
    """Show how a service is doing: clients, versions, staleness, branches, updates per second."""
    if check:
        raise typer.Exit(0 if _is_running(directory / JOURNAL) else 1)
    found = read_status(directory / JOURNAL)
    if as_json:
        print(json.dumps(found))
        return
    console = Console()
    state = "running" if found["running"] else "not running; this is how it was last seen"
    if found["silent"] is not None:
        state = f"running, but has written no status for {found['silent']:,.0f} s (stuck?)"
    refused = sum(count for kind, count in found["refusals"].items() if kind != STRATEGY)
    console.print(
        f"{state}: {counted(found['updates'], 'update')}, {found['updates_per_second']:.1f}/s, "
        f"up {found['uptime']:,.0f} s, {counted(found['journal']['events'], 'event')}, "
        f"refused {refused:,}"
    )
    _print_servers(console, found)
    if found["access_problem"] is not None:
        console.print(f"locked, nobody new is let in: {found['access_problem']}", markup=False)
    for row in found.get("left_out", ()):
        console.print(f"event {row['event']} ({row['description']}) was left out on {row['when']}", markup=False)
    names = {name: name.replace("clusters.branches.", "cluster ") for name in found["branches"]}
    if names:
        versions = ", ".join(f"{names[name]}: {version}" for name, version in found["branches"].items())
        console.print(f"versions: {versions}")
    if found.get("tryout_winner") is not None:
        console.print(f"tryout won by: {found['tryout_winner']}")
    console.print(_client_table(found))
    for row in found["clients"]:
        if row["quarantined"] is not None:
            console.print(f"client {row['client']} is in quarantine: {row['quarantined']}", markup=False)


def _print_servers(console: Console, found: dict[str, Any]) -> None:
    """Of a service that several servers share."""
    if not found.get("servers"):
        return
    if found["database_problem"]:
        console.print(f"the database does not answer: {found['database_problem']}", markup=False)
    table = Table("server", "role", "event", "note", box=SIMPLE_HEAD, padding=0, pad_edge=False)
    for row in found["servers"]:
        notes = [row["problem"]] if row["problem"] else []
        notes += [f"follows {row['follows']}"] if row["follows"] else []
        notes += [f"differed at event {row['differed_at']:,}"] if row["differed_at"] is not None else []
        notes += [f"silent for {row['silent']:,.0f} s"] if row["silent"] > SILENT_SECONDS else []
        name = f"{row['address']} (this one)" if row["name"] == found["server"] else row["address"]
        table.add_row(name, row["role"], f"{row['event']:,}", "; ".join(notes))
    console.print(table)


def _is_running(journal: Path) -> bool:
    try:
        return bool(read_status(journal)["running"])
    except NotStartedError:
        return False


def _client_table(found: dict[str, Any]) -> Table:
    """One row per client, with the columns that this service has something for."""
    clusters = {row["client"]: row["cluster"] for row in found["clients"] if row["cluster"] is not None}
    clustered = len(set(clusters.values())) > 1 and any(cluster != client for client, cluster in clusters.items())
    planned = any("arrival_group" in row for row in found["clients"])
    mixed = any("mixture" in row for row in found["clients"])
    compared = any(row.get("used") is not None for row in found["clients"])
    titles = ["client", "doing", "updates", "version", "staleness", "last update", "idle"]
    titles += ["used", "alone", "better off"] * compared
    titles += ["cluster"] * clustered + ["mixture %"] * mixed + ["arrival group", "expected"] * planned
    table = Table(*titles, box=SIMPLE_HEAD, padding=0, pad_edge=False)
    for row in found["clients"]:
        doing = row["doing"] if row["connected"] or row["doing"] == "away" else f"{row['doing']}, offline"
        if row["quarantined"] is not None:
            doing = "quarantined"
        last = "" if row["last_update"] is None else _from_now(row["last_update"] - found["uptime"])
        version, staleness = ("" if row[name] is None else row[name] for name in ("version", "staleness"))
        cells = [row["client"], doing, row["updates"], version, staleness, last, f"{row['idle_share']:.0%}"]
        cells += _compared(row) if compared else []
        cells += [clusters.get(row["client"], "")] * clustered
        cells += [" ".join(f"{100 * share:.0f}" for share in row.get("mixture", ()))] * mixed
        if "arrival_group" in row:
            cells += [row["arrival_group"], _from_now(row["expected"] - found["uptime"])]
        table.add_row(*map(str, cells))
    return table


def _compared(row: dict[str, Any]) -> list[str]:
    """How the model that a client works with does beside the one that it trains alone, as it says."""
    used, alone = row.get("used"), row.get("alone")
    if used is None or alone is None:
        return ["", "", ""]
    return [f"{used:.1%}", f"{alone:.1%}", "yes" if used > alone else "no" if used < alone else "equal"]


def _from_now(seconds: float) -> str:
    return f"in {seconds:,.0f} s" if seconds >= 0 else f"{-seconds:,.0f} s ago"


def replay(
    directory: Annotated[Path, typer.Argument(metavar="JOURNAL", help="the journal's directory")],
    until: Annotated[int | None, typer.Option(min=0, help="the state after this event (default: the last)")] = None,
    strategy: Annotated[
        str | None, typer.Option(help="what if: the same arrivals under this strategy, by name or file.py:Class")
    ] = None,
    set_: Set = [],  # noqa: B006
    out: Annotated[Path | None, typer.Option(help="write the models that clients are served (.safetensors)")] = None,
    allow_import: AllowImport = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Rebuild a service's state from its journal and print its digest; or try another strategy on the same arrivals."""
    if strategy is not None:
        changed = {"strategy": strategy, "parameters": parse_assignments(set_)}
        allowed = [*allow_import, *_if_recorded(directory, strategy)]
        method = settings_in(directory, allowed).model_copy(update=changed)
        method.check()
        found = what_if(directory, method, until, allowed=allowed)
        rows = [(found.real.settings.strategy, found.real), (f"{strategy} (what if)", found.other)]
    elif set_:
        raise UserError("--set belongs to --strategy: give both.")
    else:
        replayed = replay_journal(directory, until, allowed=allow_import)
        rows = [(replayed.settings.strategy, replayed)]
    if out is not None:
        service = rows[-1][1].service
        _write(served_models(service.strategy, sorted(service.members)), out)
    figures = {name: one.figures() for name, one in rows}
    if as_json:
        print(json.dumps(figures))
        return
    table = Table("")
    for name in figures:
        table.add_column(name, overflow="fold")
    for name in next(iter(figures.values())):
        table.add_row(name, *(_figure(row[name]) for row in figures.values()))
    Console().print(table)
    real = rows[0][1]
    if real.from_event:
        print(
            f"updates, unasked and mean_staleness are counted from event {real.from_event:,} on, the oldest snapshot."
        )
        print(f"Since it began the service has taken {counted(real.service.updates, 'update')}.")


def _if_recorded(directory: Path, strategy: str) -> list[str]:
    """The strategy that the user names, if the journal names the same code: it needs no --allow-import."""
    with closing(existing_journal(directory)) as journal:
        recorded = recorded_settings(journal).import_paths().values()
    return [strategy] if names_code(strategy, list(recorded)) else []


def _write(models: dict[str, Tensor], path: Path) -> None:
    try:
        save_file(models, path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"Cannot write {path}: {error}. Choose another --out.") from None


def _figure(value: object) -> str:
    return "" if value is None else f"{value:,.2f}" if isinstance(value, float) else str(value)
