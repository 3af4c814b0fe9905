"""A service as a process: its directory with who may talk to it, certificates and journal, an address, and signals to
stop it or to let it read its files again."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from polytempo.core.errors import UserError
from polytempo.serve.access.enrolment import make_code
from polytempo.serve.access.live import Access, release
from polytempo.serve.access.tls import ServerCertificate
from polytempo.serve.access.tokens import revoke_client
from polytempo.serve.addresses import check_free, check_loopback
from polytempo.serve.journal.opening import open_service
from polytempo.serve.journal.settings import ServiceSettings
from polytempo.serve.journal.store import Journal
from polytempo.serve.logs import log, log_to, log_to_file
from polytempo.serve.paths import ACCESS, JOURNAL, OPERATIONS
from polytempo.serve.process.supervisor import tell_supervisor
from polytempo.serve.server.host import Host
from polytempo.serve.server.meters import Meters
from polytempo.serve.server.operations import LogFile, read_operations
from polytempo.serve.server.sessions import Server
from polytempo.serve.server.status import read_status

if TYPE_CHECKING:
    from polytempo.serve.operators.admin import Admin

LOOK_EVERY = 1.0
"""Seconds between looks at the certificates."""


@dataclass(frozen=True)
class Doors:
    """Where a service is reached, and how. ``mutual``: clients have to show certificates of their own; ``insecure``:
    plaintext, only on loopback; ``admin``: where operators reach it, if they do."""

    address: str
    insecure: bool = False
    mutual: bool = False
    admin: str | None = None

    def check(self) -> None:
        if self.insecure:
            check_loopback(self.address)
        if self.insecure and self.mutual:
            raise UserError("--mtls and --insecure exclude each other: give one.")


@dataclass(frozen=True)
class Listening:
    """A service that clients can reach."""

    address: str
    secure: bool
    parameters: int
    """Numbers in the model."""
    event: int
    """The last event in its journal; 0 if it begins."""
    admin: str | None = None
    mutual: bool = False


def run_service(
    directory: Path,
    settings: ServiceSettings,
    doors: Doors,
    *,
    lose_tail: bool = False,
    log_level: str = "info",
    on_listening: Callable[[Listening], None] = lambda _: None,
) -> None:
    """Serve until SIGINT or SIGTERM, then stop with a snapshot; at SIGHUP read ``service.toml`` again. ``directory``
    holds that file, ``access.json``, the server's certificate and key, and the journal."""

    os.umask(0o077)  # what others write for us, such as SQLite, is for the owner only

    async def until_signalled() -> None:
        stop, again = asyncio.Event(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, again.set)
        await serve(directory, settings, doors, stop, again, lose_tail, log_level, on_listening)

    asyncio.run(until_signalled())


async def serve(
    directory: Path,
    settings: ServiceSettings,
    doors: Doors,
    stop: asyncio.Event,
    again: asyncio.Event,
    lose_tail: bool = False,
    log_level: str = "info",
    on_listening: Callable[[Listening], None] = lambda _: None,
) -> None:
    """Serve until told to stop. What can be wrong with the command is found before the journal is touched."""
    settings.check()
    doors.check()
    if directory.is_file():
        raise UserError(f"{directory} is a file. Expected the service's directory (--dir).")
    certificate = None if doors.insecure else _certificate(directory, doors.mutual)
    operations = read_operations(directory / OPERATIONS)
    access = Access(directory)
    log_as_said(operations.log, directory, log_level)
    _warn_of_readable_secrets(directory)
    # Before a service begins, whose settings then last.
    check_free({"--listen": doors.address} | ({} if doors.admin is None else {"--admin": doors.admin}))
    opened = open_service(directory / JOURNAL, settings, lose_tail)
    if not doors.mutual and _was_mutual(directory):
        log("no certificates asked for", level=logging.WARNING, reason="It was last started with --mtls.")
    try:
        server = Server(lambda flush: Host(opened, operations, access, flush=flush), doors.mutual)
        port = server.listen(doors.address, None if certificate is None else certificate.credentials())
        reload = partial(_reload, directory, server, log_level)
        admin, admin_at = None, None
        if doors.admin is not None:
            admin = _admin(directory, server, reload)
            context = None if certificate is None else certificate.web_context()
            admin_at = _with_port(doors.admin, await admin.start(doors.admin, context))
    except BaseException:
        opened.journal.close()
        raise
    watching = asyncio.create_task(_watch(again, certificate, server.host.meters, reload))
    on_listening(
        Listening(
            _with_port(doors.address, port),
            not doors.insecure,
            opened.service.schema.size,
            opened.journal.last,
            admin_at,
            doors.mutual,
        )
    )
    tell_supervisor("READY=1")
    log(
        "started",
        level=logging.WARNING,
        address=doors.address,
        number=opened.journal.last,
        mutual=doors.mutual,
        admin=admin_at,
        version=metadata.version("polytempo"),
    )
    try:
        await server.serve(stop)
    finally:
        log("stopped", level=logging.WARNING, number=opened.journal.last)
        watching.cancel()
        if admin is not None:
            await admin.stop()


def _was_mutual(directory: Path) -> bool:
    try:
        return bool(read_status(directory / JOURNAL).get("mutual"))
    except UserError:  # it was never started
        return False


def _with_port(address: str, port: int) -> str:
    return f"{address.rpartition(':')[0]}:{port}"


def log_as_said(said: LogFile, directory: Path, level: str) -> None:
    """Logs go to the file, beside the other files of the service unless its path says otherwise; or to stderr."""
    if said.file is None:
        log_to(level=level)
    else:
        log_to_file(directory / said.file, level, said.bytes, said.kept)


def _reload(directory: Path, server: Server, log_level: str) -> None:
    """Read everything again that may change while the service runs, but for certificates, which are looked at anyway.
    What is wrong changes nothing."""
    host = server.host
    said = read_operations(directory / OPERATIONS)
    if said.log != host.operations.log:
        log_as_said(said.log, directory, log_level)
    before, host.operations = host.operations.model_dump(mode="json"), said
    host.access.refresh()
    server.enforce()
    now = said.model_dump(mode="json")
    log("reloaded", level=logging.WARNING, **{name: now[name] for name in now if now[name] != before[name]})


async def _watch(
    again: asyncio.Event, certificate: ServerCertificate | None, meters: Meters, reload: Callable[[], None]
) -> None:
    """Take new certificates when they come, and all else when told."""
    while True:
        with suppress(TimeoutError):
            await asyncio.wait_for(again.wait(), LOOK_EVERY)
        try:
            if again.is_set():
                again.clear()
                reload()
            if certificate is not None:
                certificate.refresh()
                meters.certificate_expires = certificate.expires
        except Exception as error:  # the next one may be good
            log("not reloaded", level=logging.ERROR, reason=str(error))


def _admin(directory: Path, server: Server, reload: Callable[[], None]) -> "Admin":
    from polytempo.serve.operators.admin import Actions, Admin  # an extra

    host = server.host
    actions = Actions(
        partial(revoke_client, directory), partial(release, directory), partial(make_code, directory), reload
    )
    return Admin(host.said, lambda token: host.access.roster.operator_of(token), actions, host.well)


def _warn_of_readable_secrets(directory: Path) -> None:
    """Keys, tokens and the list of their hashes are for the owner only."""
    secret = [*directory.glob("*.key"), *directory.glob("*.token"), directory / ACCESS]
    readable = sorted(path.name for path in secret if path.exists() and path.stat().st_mode & 0o077)
    if readable:
        advice = f"chmod go= {directory}/*.key {directory}/*.token {directory / ACCESS}"
        log("others can read secrets", level=logging.WARNING, files=readable, reason=f"Let nobody else: {advice}")


def _certificate(directory: Path, mutual: bool) -> ServerCertificate:
    if not (directory / "server.pem").exists() and Journal.exists(directory / JOURNAL):
        raise UserError(
            f"There is no {directory / 'server.pem'}, and a service has been running here. Copy its server.pem and "
            f"server.key to {directory}. Only if they are lost, make new ones with `polytempo certs {directory} --host "
            "NAME`: with the ca.key that you have, or every client needs a new ca.pem."
        )
    if not (directory / "server.pem").exists():
        raise UserError(
            f"There is no {directory / 'server.pem'}. Make the server's certificate with `polytempo certs {directory} "
            "--host NAME`, or serve plaintext on loopback with --insecure."
        )
    return ServerCertificate(directory, mutual)
