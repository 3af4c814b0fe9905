"""A service on its journal: begun, or continued where it was when it last stopped, however it stopped."""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from torch import Tensor

import polytempo
from polytempo.core.disk.files import make_directory
from polytempo.core.errors import UserError
from polytempo.core.registry import imported_file
from polytempo.core.state import load, save
from polytempo.core.validation import refusal
from polytempo.core.versions import versions
from polytempo.learn.proxies import WARM_UP_EPOCHS
from polytempo.serve.journal.database import DamagedError, JournalError
from polytempo.serve.journal.proxies import (
    check_needed,
    check_unchanged,
    given_proxies,
    kept_proxies,
    make_proxy_sets,
    proxies_digest,
)
from polytempo.serve.journal.recovery import newest_snapshot, recover
from polytempo.serve.journal.settings import ServiceSettings
from polytempo.serve.journal.store import Journal
from polytempo.serve.logs import log
from polytempo.serve.paths import INITIAL, JOURNAL, PROXIES, STATUS
from polytempo.serve.protocol.welcome import check_welcome_fits
from polytempo.serve.state.events import Event
from polytempo.serve.state.service import Service
from polytempo.strategies.base.strategy import strategy_class
from polytempo.world.proxies import write_proxies

FORMAT = 2
"""Of journals. Those of Polytempo 0.1 name none; their snapshots hold classes that have moved since."""
RENUMBERED_BY = 10**12
"""When events were lost, orders are numbered so far ahead that no client's old task is taken for a new one,
however many they were: at a thousand orders a second this many take thirty years."""


@dataclass(frozen=True)
class Opened:
    """A service that is ready to go on."""

    journal: Journal
    service: Service
    begin: Callable[[], Service]
    """Makes the service as it was before its first event."""


def open_service(
    directory: Path, settings: ServiceSettings, lose_tail: bool = False, objects: Mapping[str, Any] | None = None
) -> Opened:
    """Begin a service in a new directory, or continue the one that is there. ``lose_tail`` allows to lose events that
    cannot be replayed: damaged ones, or those that another version of the code wrote after its last snapshot."""
    settings.check()
    torch.set_num_threads(1)  # replayed sums have the same bits as the server's
    if not Journal.exists(directory):
        return _begin(directory, settings, objects or {})
    journal = Journal(directory)
    try:
        _check_same(journal, settings)
        check_unchanged(journal, settings.proxies)
        journal.lock()
        begin = beginning(journal, settings, objects)
        return Opened(journal, _continued(journal, settings, begin, lose_tail), begin)
    except BaseException:
        journal.close()
        raise


def beginning(
    journal: Journal, settings: ServiceSettings, objects: Mapping[str, Any] | None = None
) -> Callable[[], Service]:
    """How to make the service as it was before the journal's first event."""
    schema, initial = journal.schema, _read_initial(journal)
    given = journal_objects(journal, settings, objects)
    return lambda: Service(settings.begin(settings.make(), initial, schema, objects=given))


def journal_objects(
    journal: Journal, settings: ServiceSettings, objects: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What the strategies of a journal are handed: its proxy sets, and what the caller adds."""
    given = dict(objects or {})
    if "proxies" not in given and (data := kept_proxies(journal)) is not None:
        given["proxies"] = make_proxy_sets(settings, journal.schema, data)
    return given


def code_versions(settings: ServiceSettings) -> dict[str, str]:
    """What has to be the same for a replay to give the same bits: packages, CPU, and the code itself. A strategy with
    proxy sets computes with the model, which is then part of the code."""
    root = Path(polytempo.__file__).parent
    learns = strategy_class(settings.strategy).needs_proxies
    layers = ("core", "learn", "strategies") if learns else ("core", "strategies")
    files = sorted(path for layer in layers for path in (root / layer).rglob("*.py"))
    files += [*sorted((root / "serve" / "state").glob("*.py"))]
    files += [root / "serve" / "journal" / f"{name}.py" for name in ("recovery", "rows")]
    own = [imported_file(name) for name in (settings.strategy, *([settings.model] if learns else []))]
    contents = b"".join(path.read_bytes() for path in [*files, *own] if path is not None)
    return versions() | {"code": hashlib.sha256(contents).hexdigest()}


def _begin(directory: Path, settings: ServiceSettings, objects: Mapping[str, Any]) -> Opened:
    proxies = given_proxies(settings)
    if proxies is None:
        check_needed(settings.strategy, objects)
    schema, initial = settings.first_model()
    check_welcome_fits(schema)
    if proxies is not None:
        sets = make_proxy_sets(settings, schema, proxies)
        initial = sets.warmed(initial, WARM_UP_EPOCHS if settings.warm_up is None else settings.warm_up)
        objects = {"proxies": sets, **objects}

    def begin() -> Service:
        return Service(settings.begin(settings.make(), initial, schema, objects=objects))

    about = {
        "format": FORMAT,
        "settings": settings.lasting(),
        "schema": {"names": schema.names, "shapes": schema.shapes, "parameters": schema.parameter_count},
        "versions": code_versions(settings),
        "proxies": None if proxies is None else proxies_digest(proxies),
    }
    service = begin()
    try:
        make_directory(directory, 0o700)
        save({"weights": initial}, directory / INITIAL, 0o600)
        if proxies is not None:
            write_proxies(directory / PROXIES, proxies, 0o600)
    except OSError as error:
        raise UserError(f"Cannot keep a journal in {directory}: {error.strerror}. Choose another --dir.") from None
    journal = Journal.begin(directory, about, service.save_state())
    return Opened(journal, service, begin)


def _continued(journal: Journal, settings: ServiceSettings, begin: Callable[[], Service], lose_tail: bool) -> Service:
    now = code_versions(settings)
    until = journal.last
    if journal.about["versions"] != now:
        until = _end_for_other_version(journal, now, lose_tail)
    try:
        service = recover(journal, begin, until)
    except DamagedError as error:
        if not lose_tail:
            raise
        until = error.number - 1
        service = recover(journal, begin, until)
    known = _last_known_event(journal.directory)
    if known > journal.last and not lose_tail:
        raise JournalError(
            f"The journal in {journal.directory} ends at event {journal.last}, and event {known} had happened: the "
            "database has lost its end. Nothing was changed. Restore it from a backup, or start with --lose-tail."
        )
    if until < max(journal.last, known):
        log("events lost", level=logging.WARNING, count=max(journal.last, known) - until)
        event = Event("renumbered", service.now, number=service.number + RENUMBERED_BY)
        journal.replace_tail(until, event)
        service.apply(event)
    if journal.about["versions"] != now:
        if journal.newest_snapshot() != journal.last:
            journal.snapshot(service.save_state())
        journal.forget_before_last_snapshot()
        journal.describe(journal.about | {"versions": now})
    return service


def _end_for_other_version(journal: Journal, now: dict[str, str], lose_tail: bool) -> int:
    """The last event that this version may go on from: a snapshot's."""
    newest, _ = newest_snapshot(journal)
    tail = journal.last - newest
    if tail and not lose_tail:
        changed = [name for name in now if journal.about["versions"].get(name) != now[name]]
        raise JournalError(
            f"The journal in {journal.directory} was written by another version ({', '.join(changed)} changed), which "
            f"did not stop cleanly: {tail} events after its last snapshot cannot be replayed bit for bit. Start and "
            "stop the old version once, which makes a snapshot; or start with --lose-tail to lose these events."
        )
    return newest


def _check_same(journal: Journal, settings: ServiceSettings) -> None:
    known, asked = settings_of(journal).lasting(), settings.lasting()
    different = next((name for name in asked if known[name] != asked[name]), None)
    if different is not None:
        raise UserError(
            f"{journal.directory} holds another service ({different} is {known[different]!r} there, "
            f"{asked[different]!r} here). Choose another --dir, or start it with the same settings."
        )


def existing_journal(directory: Path) -> Journal:
    """The journal in this directory, to read. Close it."""
    if not Journal.exists(directory):
        below = directory / JOURNAL
        hint = f"Did you mean {below}?" if below.is_dir() else "Expected the directory of a service's journal."
        raise UserError(f"{directory} holds no journal. {hint}")
    return Journal(directory)


def settings_in(directory: Path) -> ServiceSettings:
    """The settings that the journal in this directory was begun with."""
    journal = existing_journal(directory)
    try:
        return settings_of(journal)
    finally:
        journal.close()


def settings_of(journal: Journal) -> ServiceSettings:
    """The settings that a journal was begun with; those that did not exist then have their defaults."""
    if journal.about.get("format") != FORMAT:
        raise JournalError(
            f"The journal in {journal.directory} was written by Polytempo 0.1, which this version cannot read. Begin a "
            "new service in another --dir; to look at the old one, install polytempo 0.1."
        )
    try:
        return ServiceSettings.model_validate(journal.about["settings"])
    except ValidationError as error:
        raise refusal(error, f"The settings in the journal in {journal.directory}") from None


def _last_known_event(directory: Path) -> int:
    """The last event that the status file tells of; 0 if there is none."""
    try:
        events: int = json.loads((directory / STATUS).read_text())["journal"]["events"]
        return events
    except (OSError, ValueError, LookupError, TypeError):
        return 0


def _read_initial(journal: Journal) -> Tensor:
    try:
        initial: Tensor = load(journal.directory / INITIAL)["weights"]
        return initial
    except (OSError, SafetensorError, LookupError, TypeError, ValueError) as error:
        raise JournalError(
            f"{journal.directory / INITIAL} cannot be read: {error}. Restore it from a backup."
        ) from None
