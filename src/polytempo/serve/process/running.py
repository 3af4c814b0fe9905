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
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
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
from polytempo.serve.paths import ACCESS, JOURNAL, OPERATIONS, SERVER_CERTIFICATE
from polytempo.serve.process.ending import StuckError, end_process, threads_since, without_waiting
from polytempo.serve.process.options import OPEN_TO_STRANGERS, Endpoints, Listening, ServeOptions
from polytempo.serve.process.reloading import direct_logs, reload, watch
from polytempo.serve.process.supervisor import tell_supervisor
from polytempo.serve.process.turns import Alone, Found, Turns, closed_unless_stuck
from polytempo.serve.process.watchdog import Watchdog, checked_unless_stopped, ended_if_frozen
from polytempo.serve.server.host import Host
from polytempo.serve.server.network.outbox import Outbox
from polytempo.serve.server.network.sessions import Server
from polytempo.serve.server.operations import read_operations
from polytempo.serve.server.shared import Shared
from polytempo.serve.server.status import read_status
from polytempo.serve.storage.address import database_of, keep_in_database
from polytempo.serve.storage.errors import LostLeadError
from polytempo_client.logs import log

STANDS_BY = "this server stands by"
"""Why a client has to try another one."""
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
    turns = _turns(options)
    with closed_unless_stuck(turns):
        operations = read_operations(directory / OPERATIONS, turns.documents)
        access = Access(directory, documents=turns.documents)
        shared = Shared(operations, access, Outbox(asyncio.get_running_loop().call_soon_threadsafe))
        async with ended_if_frozen(lambda: shared.operations.watchdog.frozen_seconds):
            await checked_unless_stopped(options.settings.check, stop)
            direct_logs(operations.log, directory, options.log_level)
            _warn_of_readable_secrets(directory)
            await _serve(options, turns, certificate, shared, stop, again, on_listening)


def _turns(options: ServeOptions) -> Turns:
    if options.store is not None:
        keep_in_database(options.directory, options.store)
    address = database_of(options.directory)
    if address is None:
        return Alone(options)
    from polytempo.serve.process.several import Several  # an extra

    return Several(options, address)


async def _serve(
    options: ServeOptions,
    turns: Turns,
    certificate: ServerCertificate | None,
    shared: Shared,
    stop: asyncio.Event,
    again: asyncio.Event,
    on_listening: Callable[[Listening], None],
) -> None:
    directory, endpoints = options.directory, options.endpoints
    check_free(endpoints.by_option())  # before a service begins, whose settings then last
    found = await turns.open(shared, stop)
    if endpoints.open_to_strangers:
        log("no certificates asked for", level=logging.WARNING, reason=OPEN_TO_STRANGERS)
    if not endpoints.mutual and _was_mutual(directory):
        log("no certificates asked for", level=logging.WARNING, reason="It was last started with --mtls.")
    server = Server(lambda request: request.release(), found.schema, shared, endpoints.mutual)
    port = server.listen(endpoints.address, None if certificate is None else certificate.credentials())
    address = _with_port(endpoints.address, port)
    turns.listen(address)
    read_again = partial(reload, directory, shared, server, options.log_level, turns.documents)
    async with _operators_page(options, turns, shared.access, certificate, read_again) as admin:
        on_listening(
            Listening(
                address,
                not endpoints.insecure,
                found.schema.size,
                found.event,
                admin,
                endpoints.mutual,
                found.defences,
                turns.stands_by,
            )
        )
        tell_supervisor("READY=1")
        _log_start(endpoints, found, admin)
        watching = asyncio.create_task(watch(again, certificate, shared.meters, read_again, turns.documents))
        try:
            await _serve_in_turns(stop, turns, server, shared)
        finally:
            watching.cancel()


async def _serve_in_turns(stop: asyncio.Event, turns: Turns, server: Server, shared: Shared) -> None:
    """Until told to stop, or until the host fails: stand by, lead, and stand by again."""
    if turns.stands_by:
        server.turn_away(STANDS_BY)
    await server.start()
    try:
        while (opened := await turns.wait_for_lead(stop)) is not None:
            host = Host(opened, shared)
            server.let_in(host.submit)
            turns.lead(host)
            try:
                await lead_until(stop, host, server, shared, turns)
            except LostLeadError as error:
                log("stands by", level=logging.WARNING, reason=str(error))
            if stop.is_set():
                break
    finally:
        tell_supervisor("STOPPING=1")
        await server.close()


async def lead_until(
    stop: asyncio.Event, host: Host, server: Server, shared: Shared, turns: Turns | None = None
) -> None:
    """Until told to stop, until it is another server's turn, or until the host fails. Then what has arrived is
    answered, clients are told to come again, and the state is kept, all of it within the watchdog's time."""
    watchdog, ending = Watchdog(host), None
    host.start()
    try:
        while not stop.is_set() and host.error is None and ending is None:
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), ENFORCE_EVERY)
            shared.access.refresh()
            server.enforce()
            watchdog.look()
            ending = None if turns is None or host.error is not None else turns.look()
    finally:
        several = turns is not None and turns.stands_by
        if several:
            server.turn_away(STANDS_BY)
        else:
            server.drain()
        if host.error is not None or (ending is not None and ending.is_lost):
            server.end_sessions()  # before the host, which may wait for the database, or the method
        elif ending is None and turns is not None:
            ending = turns.ending()
        await watchdog.stop(time.monotonic() + shared.operations.watchdog.stop_seconds, ending)
        if several:
            server.end_sessions()
        log("stopped", level=logging.WARNING, number=host.journal.last)
    if host.error is not None:
        raise host.error


@asynccontextmanager
async def _operators_page(
    options: ServeOptions,
    turns: Turns,
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
    admin = Admin(turns.status, lambda token: access.roster.operator_of(token, access.now()), actions, turns.health)
    context = None if certificate is None else certificate.web_context()
    port = await admin.start(address, context)
    try:
        yield _with_port(address, port)
    finally:
        await admin.stop()


def _log_start(endpoints: Endpoints, found: Found, admin: str | None) -> None:
    log(
        "started",
        level=logging.WARNING,
        address=endpoints.address,
        number=found.event,
        mutual=endpoints.mutual,
        admin=admin,
        version=metadata.version("polytempo"),
        defences=found.defences,
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
    if not certificate.exists() and database_of(directory) is None and Journal.exists(directory / JOURNAL):
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
