"""The proxy sets of a service: given when it begins, and from then on a file beside its journal."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polytempo.core.errors import UserError
from polytempo.core.state import digest
from polytempo.learn.learner import make_learner
from polytempo.learn.models import Inputs
from polytempo.learn.proxies import ProxySets
from polytempo.serve.journal.journal import Journal
from polytempo.serve.journal.settings import ServiceSettings
from polytempo.serve.paths import PROXIES
from polytempo.serve.storage.errors import JournalError
from polytempo.strategies.base.strategy import strategy_class
from polytempo.world.proxies import ProxyData, check_proxies, read_proxies
from polytempo_client.model.schema import Schema


def given_proxies(settings: ServiceSettings) -> ProxyData | None:
    """What a service begins with: the file's samples, and what the data say of their labels and tokens."""
    if settings.proxies is None:
        if settings.warm_up is not None:
            raise UserError("--warm-up is training on proxy sets, and there are none. Give --proxies too.")
        return None
    data, inputs = read_proxies(settings.proxies), settings.inputs()
    check_proxies(data, inputs.shape, inputs.classes, inputs.vocabulary)
    return data._replace(classes=inputs.classes, vocabulary=inputs.vocabulary)


def kept_proxies(journal: Journal) -> ProxyData | None:
    """What the service of a journal was begun with."""
    expected = journal.about.get("proxies")
    if expected is None:
        return None
    try:
        with journal.file(PROXIES) as path:
            data = read_proxies(path)
    except (UserError, OSError) as error:
        raise JournalError(f"{error} This is the service's own copy. Restore it from a backup.") from None
    if proxies_digest(data) != expected:
        raise JournalError(
            f"{PROXIES} of the journal in {journal.name} is not what the service was begun with. Restore it from a "
            "backup."
        )
    return data


def proxies_digest(data: ProxyData) -> str:
    """Equal for the same samples, whatever a file says of their labels and tokens."""
    return digest(data.x, data.y, data.offsets)


def make_proxy_sets(settings: ServiceSettings, schema: Schema, data: ProxyData) -> ProxySets:
    """The proxy sets as strategies get them, which judge and train the service's model on them."""
    inputs = Inputs(data.x.shape[1:], data.classes, data.vocabulary)
    learner, initial = make_learner(settings.model, inputs, settings.seed)
    learner = learner.with_private(settings.private_layers(), initial)
    if learner.schema != schema:
        raise UserError(
            f"The model {settings.model} is not the service's any more: its tensors changed, "
            "or those of its frozen parts."
        )
    return ProxySets(learner, data.x, data.y, data.offsets, settings.work(), settings.seed)


def check_needed(strategy: str, objects: Mapping[str, Any], directory: Path | None = None) -> None:
    """Refuse a strategy that needs proxy sets where there are none: in a service that begins, or in the journal in
    ``directory``."""
    if "proxies" in objects or not strategy_class(strategy).needs_proxies:
        return
    needs = f"{strategy} needs proxy sets, a few samples of each cluster at the server"
    if directory is not None:
        raise UserError(f"{needs}, and the journal in {directory} is of a service that was begun without --proxies.")
    raise UserError(
        f"{needs}. Give --proxies FILE.npz with x, y and cluster (0 .. K - 1); `polytempo data proxies FILE.npz "
        "--data DATA --partition PARTITION --clients N` sets samples of a data set aside for it."
    )


def check_unchanged(journal: Journal, given: Path | None) -> None:
    """A service goes on with the proxy sets that it was begun with, whether the file that they came from is still there
    or not."""
    kept = journal.about.get("proxies")
    if given is None or (kept is not None and not given.exists()):
        return
    if kept is None or proxies_digest(read_proxies(given)) != kept:
        raise UserError(
            f"{journal.name} holds a service with other proxy sets than {given}, or with none. Choose another "
            "--dir, or start it without --proxies: it has its own copy."
        )
