"""What a running service reads again: ``service.toml`` and ``access.json`` when told, certificates when they change."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from polytempo.serve.access.tls import ServerCertificate
from polytempo.serve.logs import log_to_file
from polytempo.serve.paths import OPERATIONS
from polytempo.serve.server.meters import Meters
from polytempo.serve.server.network.sessions import Server
from polytempo.serve.server.operations import LogFile, read_operations
from polytempo.serve.server.shared import Shared
from polytempo.serve.storage.documents import Documents
from polytempo_client.logs import log, log_to

LOOK_EVERY = 1.0
"""Seconds between looks at the certificates."""


def direct_logs(to: LogFile, directory: Path, level: str) -> None:
    """Write logs to the file, beside the other files of the service unless its path says otherwise; or to stderr."""
    if to.file is None:
        log_to(level=level)
    else:
        log_to_file(directory / to.file, level, to.bytes, to.kept)


def reload(directory: Path, shared: Shared, server: Server, log_level: str, documents: Documents) -> None:
    """Read everything again that may change while the service runs, but for certificates, which are looked at anyway.
    What is wrong changes nothing."""
    found = read_operations(directory / OPERATIONS, documents)
    if found.log != shared.operations.log:
        direct_logs(found.log, directory, log_level)
    before, shared.operations = shared.operations.model_dump(mode="json"), found
    shared.access.refresh()
    server.enforce()
    now = found.model_dump(mode="json")
    log("reloaded", level=logging.WARNING, **{name: now[name] for name in now if now[name] != before[name]})


async def watch(
    again: asyncio.Event,
    certificate: ServerCertificate | None,
    meters: Meters,
    reload: Callable[[], None],
    documents: Documents,
) -> None:
    """Take new certificates when they come, and all else when told. Settings in a database are everybody's: a change
    of them is word enough."""
    stamp = documents.stamp(OPERATIONS)
    while True:
        with suppress(TimeoutError):
            await asyncio.wait_for(again.wait(), LOOK_EVERY)
        try:
            before, stamp = stamp, documents.stamp(OPERATIONS)
            if again.is_set() or (documents.is_shared and stamp != before and None not in (stamp, before)):
                again.clear()
                reload()
            if certificate is not None:
                certificate.refresh()
                meters.certificate_expires = certificate.expires
        except Exception as error:  # the next one may be good
            log("not reloaded", level=logging.ERROR, reason=str(error))
