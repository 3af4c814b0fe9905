"""A service on its journal: begun, or continued where it was when it last stopped, however it stopped."""

import hashlib
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from torch import Tensor

import polytempo
from polytempo.core.errors import UserError
from polytempo.core.registry import check_imports, source_file
from polytempo.core.state import load, save
from polytempo.core.validation import refusal
from polytempo.core.versions import versions
from polytempo.learn.proxies import WARM_UP_EPOCHS
from polytempo.serve.journal.continuing import NO_CONSENT, Consent, code_of, continued
from polytempo.serve.journal.journal import Journal
from polytempo.serve.journal.proxies import (
    check_needed,
    check_unchanged,
    given_proxies,
    kept_proxies,
    make_proxy_sets,
    proxies_digest,
)
from polytempo.serve.journal.recovery import Warm
from polytempo.serve.journal.settings import CHANGEABLE, MAY_NAME_CODE, ServiceSettings
from polytempo.serve.journal.stores import Candidate, make_store, open_store
from polytempo.serve.paths import INITIAL, JOURNAL, PROXIES
from polytempo.serve.state.service import Service
from polytempo.serve.storage.errors import JournalError, TakenError
from polytempo.strategies.base.strategy import strategy_class
from polytempo.world.proxies import write_proxies
from polytempo_client.model.schema import Schema
from polytempo_client.protocol.welcome import check_welcome_fits

FORMAT = 2
"""Of journals. Those of Polytempo 0.1 name none; their snapshots hold classes that have moved since."""
BEGINNINGS, BEGINNING_SECONDS = 60, 0.25
"""How often, and after which pause, it is looked whether another server has begun the service."""
NOT_YET = {"samples_cap": None}
"""Settings with a default that changes what a service does: a journal that does not name them was begun without."""


@dataclass(frozen=True)
class Opened:
    """A service that is ready to go on."""

    journal: Journal
    service: Service
    begin: Callable[[], Service]
    """Makes the service as it was before its first event."""


@dataclass(frozen=True)
class Prepared:
    """A service whose journal is there, and that this process may run as soon as it may write."""

    journal: Journal
    begin: Callable[[], Service]
    versions: dict[str, str]
    """Of the code that runs it here."""
    begun: Service | None = None
    """The service, if this process has just begun it: then it may write already."""

    def lead(self, consent: Consent, warm: Warm | None = None) -> Opened:
        """Take the journal for writing, and go on from where it ends. ``warm`` is a state on the way there."""
        if self.begun is not None:
            return Opened(self.journal, self.begun, self.begin)
        self.journal.lock()
        return Opened(self.journal, continued(self.journal, self.begin, self.versions, consent, warm), self.begin)


def open_service(
    directory: Path,
    settings: ServiceSettings,
    consent: Consent = NO_CONSENT,
    objects: Mapping[str, Any] | None = None,
    on_open: Callable[[Journal], None] = lambda _: None,
) -> Opened:
    """Begin a service in a new directory, or continue the one that is there. ``on_open`` is given the journal before
    it is replayed."""
    prepared = prepare_service(directory, settings, objects)
    try:
        on_open(prepared.journal)
        return prepared.lead(consent)
    except BaseException:
        prepared.journal.close()
        raise


def prepare_service(
    directory: Path,
    settings: ServiceSettings,
    objects: Mapping[str, Any] | None = None,
    candidate: Candidate | None = None,
) -> Prepared:
    """Begin a service, or find the one that is there and what it needs to go on. ``candidate``: this server, where
    several share a store."""
    settings.check()
    torch.set_num_threads(1)  # replayed sums have the same bits as the server's
    for _ in range(BEGINNINGS):
        if Journal.exists(directory):
            break
        try:
            return _begin(directory, settings, objects or {}, candidate)
        except TakenError:  # another server begins it just now
            time.sleep(BEGINNING_SECONDS)
    journal = Journal(directory, open_store(directory, candidate))
    try:
        settings = _lasting_settings(journal, settings)
        check_unchanged(journal, settings.proxies)
        _check_init(journal, settings)
        return Prepared(journal, beginning(journal, settings, objects), code_versions(settings))
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
    own = [source_file(name) for name in (settings.strategy, *([settings.model] if learns else []))]
    contents = b"".join(path.read_bytes() for path in [*files, *own] if path is not None)
    return versions() | {"code": hashlib.sha256(contents).hexdigest()}


def _begin(
    directory: Path, settings: ServiceSettings, objects: Mapping[str, Any], candidate: Candidate | None
) -> Prepared:
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

    about: dict[str, Any] = {
        "format": FORMAT,
        "settings": settings.lasting(),
        "schema": _described(schema),
        "versions": code_versions(settings),
        "proxies": None if proxies is None else proxies_digest(proxies),
    }
    service = begin()
    files: dict[str, Callable[[Path], None]] = {INITIAL: lambda path: save({"weights": initial}, path, 0o600)}
    if proxies is not None:
        files[PROXIES] = partial(write_proxies, data=proxies, mode=0o600)
    journal = Journal.begin(directory, about, service.save_state(), files, make_store(directory, candidate))
    journal.applying.use_code(code_of(about["versions"]))
    journal.applying.clear(journal.last)
    return Prepared(journal, begin, about["versions"], service)


def _described(schema: Schema) -> dict[str, Any]:
    described = {"names": schema.names, "shapes": schema.shapes, "parameters": schema.parameter_count}
    return described | ({"frozen": schema.frozen} if schema.frozen else {})


def _lasting_settings(journal: Journal, settings: ServiceSettings) -> ServiceSettings:
    """Those of the service in the journal. What was given must agree with them; defaults are for new services. What may
    name code has to agree in any case: none of the journal's is imported."""
    known, asked = recorded_settings(journal), settings.lasting()
    kept, compared = known.lasting(), settings.model_fields_set | MAY_NAME_CODE
    different = next((name for name in asked if name in compared and kept[name] != asked[name]), None)
    if different is not None:
        raise UserError(
            f"{journal.name} holds another service ({different} is {kept[different]!r} there, "
            f"{asked[different]!r} here). Choose another --dir, or start it with the same settings."
        )
    return settings.model_copy(update={name: getattr(known, name) for name in kept})


def _check_init(journal: Journal, settings: ServiceSettings) -> None:
    """A first model that is given again has to be the one that the service began with."""
    warmed = kept_proxies(journal) is not None
    if settings.init is None or warmed or not settings.init.exists():
        return
    schema, initial = settings.first_model()
    if schema.shapes != journal.schema.shapes or not torch.equal(initial, _read_initial(journal)):
        raise UserError(
            f"{settings.init} is not the model that the service in {journal.name} began with. Leave --init out to "
            "go on with the service, or choose another --dir to begin one with this model."
        )


def existing_journal(directory: Path) -> Journal:
    """The journal in this directory, to read. Close it."""
    if not Journal.exists(directory):
        below = directory / JOURNAL
        hint = f"Did you mean {below}?" if below.is_dir() else "Expected the directory of a service's journal."
        raise UserError(f"{directory} holds no journal. {hint}")
    return Journal(directory)


def settings_in(directory: Path, allowed: Collection[str] = ()) -> ServiceSettings:
    """The settings that the journal in this directory was begun with. ``allowed`` is that of ``settings_of``."""
    journal = existing_journal(directory)
    try:
        return settings_of(journal, allowed)
    finally:
        journal.close()


def settings_of(journal: Journal, allowed: Collection[str] = ()) -> ServiceSettings:
    """The settings that a journal was begun with. Those that name code are refused unless the operator allows these
    very import paths: whoever can write a journal, or a backup of it, could run any code otherwise."""
    settings = recorded_settings(journal)
    check_imports(f"The journal in {journal.name}", settings.import_paths(), allowed)
    return settings


def recorded_settings(journal: Journal) -> ServiceSettings:
    """What a journal says that it was begun with, to compare or to show; settings that did not exist then have their
    defaults. Make nothing of it: it may name any code. ``settings_of`` is for that."""
    if journal.about.get("format") != FORMAT:
        raise JournalError(
            f"The journal in {journal.name} was written by Polytempo 0.1, which this version cannot read. Begin a "
            "new service in another --dir; to look at the old one, install polytempo 0.1."
        )
    try:
        settings = ServiceSettings.model_validate(NOT_YET | journal.about["settings"])
    except ValidationError as error:
        raise refusal(error, f"The settings in the journal in {journal.name}") from None
    if paths := sorted(settings.model_fields_set & CHANGEABLE):
        raise JournalError(
            f"The journal in {journal.name} names files to read ({', '.join(paths)}). No journal of Polytempo "
            "does: somebody has changed it. Restore it from a backup."
        )
    return settings


def _read_initial(journal: Journal) -> Tensor:
    try:
        with journal.file(INITIAL) as path:
            initial: Tensor = load(path)["weights"]
            return initial
    except (OSError, SafetensorError, LookupError, TypeError, ValueError) as error:
        raise JournalError(
            f"The first model, {INITIAL} of the journal in {journal.name}, cannot be read: {error}. Restore it from a "
            "backup."
        ) from None
