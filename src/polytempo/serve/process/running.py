"""A service as a process, built bottom-up: journal, host, server, operators' page. Signals stop it, or let it read its
files again."""

import asyncio
import gc
import logging
import os
import resource
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import NoReturn

from polytempo.core.errors import UserError
from polytempo.serve.access.enrolment import make_code
from polytempo.serve.access.live import Access, release
from polytempo.serve.access.tls import ServerCertificate
from polytempo.serve.access.tokens import revoke_client
from polytempo.serve.addresses import check_free
from polytempo.serve.journal.journal import Journal
from polytempo.serve.journal.opening import Opened, open_service, recorded_settings
from polytempo.serve.logs import log
from polytempo.serve.paths import ACCESS, JOURNAL, OPERATIONS, SERVER_CERTIFICATE
from polytempo.serve.process.ending import StuckError, end_process, threads_since, without_waiting
from polytempo.serve.process.options import OPEN_TO_STRANGERS, Endpoints, Listening, ServeOptions
from polytempo.serve.process.reloading import direct_logs, reload, watch
from polytempo.serve.process.supervisor import tell_supervisor
from polytempo.serve.process.watchdog import Watchdog, checked_unless_stopped, ended_if_frozen, opened_in_time
from polytempo.serve.server.host import Host
from polytempo.serve.server.network.outbox import Outbox
from polytempo.serve.server.network.sessions import Server
from polytempo.serve.server.operations import Operations, read_operations
from polytempo.serve.server.shared import Shared
from polytempo.serve.server.status import read_status

ENFORCE_EVERY = 0.2
"""Seconds between looks at who may still talk to the server."""


def run_service(options: ServeOptions, on_listening: Callable[[Listening], None] = lambda _: None) -> NoReturn:
    """Serve until SIGINT or SIGTERM, then stop with a snapshot and end the process; at SIGHUP read ``service.toml``
    again."""

    os.umask(0o077)  # what others write for us, such as SQLite, is for the owner only
    gc.freeze()  # modules stay: to walk through them at each collection would let a flood of objects stop everybody
    _allow_all_files()

    async def until_signalled() -> None:
        stop, again = asyncio.Event(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, again.set)
        await serve(options, stop, again, on_listening)

    before = threading.enumerate()
    try:
        asyncio.run(until_signalled())
    except Exception as error:
        if threads_since(before) and not isinstance(error, StuckError):
            raise without_waiting(error) from error
        raise
    end_process(0)


async def serve(
    options: ServeOptions,
    stop: asyncio.Event,
    again: asyncio.Event,
    on_listening: Callable[[Listening], None] = lambda _: None,
) -> None:
    """Serve until told to stop; ``again`` lets it read its files again."""
    options.check()
    directory, endpoints = options.directory, options.endpoints
    certificate = None if endpoints.insecure else _certificate(directory, endpoints.mutual)
    operations = read_operations(directory / OPERATIONS)
    shared = Shared(operations, Access(directory), Outbox(asyncio.get_running_loop().call_soon_threadsafe))
    async with ended_if_frozen(lambda: shared.operations.watchdog.frozen_seconds):
        await checked_unless_stopped(options.settings.check, stop)
        direct_logs(operations.log, directory, options.log_level)
        _warn_of_readable_secrets(directory)
        await _serve(options, certificate, shared, stop, again, on_listening)


async def _serve(
    options: ServeOptions,
    certificate: ServerCertificate | None,
    shared: Shared,
    stop: asyncio.Event,
    again: asyncio.Event,
    on_listening: Callable[[Listening], None],
) -> None:
    directory, endpoints, operations = options.directory, options.endpoints, shared.operations
    check_free(endpoints.by_option())  # before a service begins, whose settings then last
    opened = await opened_in_time(
        partial(open_service, directory / JOURNAL, options.settings, options.consent, None),
        operations.watchdog.event_seconds,
        options.consent.leave_out,
        stop,
    )
    if endpoints.open_to_strangers:
        log("no certificates asked for", level=logging.WARNING, reason=OPEN_TO_STRANGERS)
    if not endpoints.mutual and _was_mutual(directory):
        log("no certificates asked for", level=logging.WARNING, reason="It was last started with --mtls.")
    with _closed_unless_stuck(opened.journal):
        host = Host(opened, shared)
        server = Server(host.submit, opened.service.schema, shared, endpoints.mutual)
        port = server.listen(endpoints.address, None if certificate is None else certificate.credentials())
        read_again = partial(reload, directory, shared, server, options.log_level)
        async with _operators_page(options, host, shared.access, certificate, read_again) as admin:
            address, size = _with_port(endpoints.address, port), opened.service.schema.size
            defences = _defences(opened, operations)
            secure, number = not endpoints.insecure, opened.journal.last
            on_listening(Listening(address, secure, size, number, admin, endpoints.mutual, defences))
            tell_supervisor("READY=1")
            _log_start(endpoints, number, admin, defences)
            watching = asyncio.create_task(watch(again, certificate, shared.meters, read_again))
            try:
                await serve_until(stop, host, server, shared)
            finally:
                log("stopped", level=logging.WARNING, number=opened.journal.last)
                watching.cancel()


async def serve_until(stop: asyncio.Event, host: Host, server: Server, shared: Shared) -> None:
    """Until told to stop, or until the host fails. Then what has arrived is answered, clients are told to come again,
    and the state is kept, all of it within the watchdog's time."""
    watchdog = Watchdog(host)
    host.start()
    try:
        await server.start()
        while not stop.is_set() and host.error is None:
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), ENFORCE_EVERY)
            shared.access.refresh()
            server.enforce()
            watchdog.look()
    finally:
        tell_supervisor("STOPPING=1")
        server.drain()
        try:
            await watchdog.stop(time.monotonic() + shared.operations.watchdog.stop_seconds)
        finally:
            await server.close()
    if host.error is not None:
        raise host.error


@contextmanager
def _closed_unless_stuck(journal: Journal) -> Iterator[None]:
    """Close the journal at the end; but not under a thread that may be inside it, with which the process ends."""
    try:
        yield
    except StuckError:
        raise
    except BaseException:
        journal.close()
        raise
    journal.close()


@asynccontextmanager
async def _operators_page(
    options: ServeOptions,
    host: Host,
    access: Access,
    certificate: ServerCertificate | None,
    reload: Callable[[], None],
) -> AsyncIterator[str | None]:
    """Where operators reach the service; None if they do not."""
    address, directory = options.endpoints.admin, options.directory
    if address is None:
        yield None
        return
    from polytempo.serve.operators.admin import Actions, Admin  # an extra

    actions = Actions(
        partial(revoke_client, directory), partial(release, directory), partial(make_code, directory), reload
    )
    admin = Admin(host.status, lambda token: access.roster.operator_of(token, access.now()), actions, host.health)
    context = None if certificate is None else certificate.web_context()
    port = await admin.start(address, context)
    try:
        yield _with_port(address, port)
    finally:
        await admin.stop()


def _defences(opened: Opened, operations: Operations) -> str:
    bound = operations.bound(opened.service.setting.initial_norm)
    return ", ".join([*recorded_settings(opened.journal).defences(), bound.words])


def _log_start(endpoints: Endpoints, number: int, admin: str | None, defences: str) -> None:
    log(
        "started",
        level=logging.WARNING,
        address=endpoints.address,
        number=number,
        mutual=endpoints.mutual,
        admin=admin,
        version=metadata.version("polytempo"),
        defences=defences,
    )


def _allow_all_files() -> None:
    """As many as the system lets the process have: each connection is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _was_mutual(directory: Path) -> bool:
    try:
        return bool(read_status(directory / JOURNAL).get("mutual"))
    except UserError:  # it was never started
        return False


def _with_port(address: str, port: int) -> str:
    return f"{address.rpartition(':')[0]}:{port}"


def _warn_of_readable_secrets(directory: Path) -> None:
    """Keys, tokens and the list of their hashes are for the owner only."""
    secret = [*directory.glob("*.key"), *directory.glob("*.token"), directory / ACCESS]
    readable = sorted(path.name for path in secret if path.exists() and path.stat().st_mode & 0o077)
    if readable:
        advice = f"chmod go= {directory}/*.key {directory}/*.token {directory / ACCESS}"
        log("others can read secrets", level=logging.WARNING, files=readable, reason=f"Let nobody else: {advice}")


def _certificate(directory: Path, mutual: bool) -> ServerCertificate:
    certificate = directory / SERVER_CERTIFICATE
    if not certificate.exists() and Journal.exists(directory / JOURNAL):
        raise UserError(
            f"There is no {certificate}, and a service has been running here. Copy its server.pem and "
            f"server.key to {directory}. Only if they are lost, make new ones with `polytempo certs {directory} --host "
            "NAME`: with the ca.key that you have, or every client needs a new ca.pem."
        )
    if not certificate.exists():
        raise UserError(
            f"There is no {certificate}. Make the server's certificate with `polytempo certs {directory} "
            "--host NAME`, or serve plaintext on loopback with --insecure."
        )
    return ServerCertificate(directory, mutual)
