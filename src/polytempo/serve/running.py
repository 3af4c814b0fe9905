"""A service as a process: its directory with tokens, certificates and journal, an address, and signals to stop."""

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from polytempo.core.errors import UserError
from polytempo.serve.access import ROSTER, Roster
from polytempo.serve.addresses import check_loopback
from polytempo.serve.certs import server_credentials
from polytempo.serve.host import Host
from polytempo.serve.opening import open_service
from polytempo.serve.server import Server
from polytempo.serve.settings import ServiceSettings

JOURNAL = "journal"


@dataclass(frozen=True)
class Listening:
    """A service that clients can reach."""

    address: str
    secure: bool
    parameters: int
    """Numbers in the model."""
    event: int
    """The last event in its journal; 0 if it begins."""


def run_service(
    directory: Path,
    settings: ServiceSettings,
    address: str,
    *,
    insecure: bool = False,
    lose_tail: bool = False,
    on_listening: Callable[[Listening], None] = lambda _: None,
) -> None:
    """Serve until SIGINT or SIGTERM, then stop with a snapshot. ``directory`` holds ``clients.json``, the server's
    certificate and key, and the journal."""

    async def until_signalled() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await serve(directory, settings, address, stop, insecure, lose_tail, on_listening)

    asyncio.run(until_signalled())


async def serve(
    directory: Path,
    settings: ServiceSettings,
    address: str,
    stop: asyncio.Event,
    insecure: bool,
    lose_tail: bool,
    on_listening: Callable[[Listening], None],
) -> None:
    """Serve until told to stop. What can be wrong with the command is found before the journal is touched."""
    settings.check()
    if directory.is_file():
        raise UserError(f"{directory} is a file. Expected the service's directory (--dir).")
    credentials = _credentials(directory, address, insecure)
    roster = Roster.read(directory / ROSTER)
    opened = open_service(directory / JOURNAL, settings, lose_tail)
    try:
        server = Server(lambda flush: Host(opened, settings.norm_bound, settings.patience, flush=flush), roster)
        port = server.listen(address, credentials)
    except BaseException:
        opened.journal.close()
        raise
    where = f"{address.rpartition(':')[0]}:{port}"
    on_listening(Listening(where, not insecure, opened.service.schema.size, opened.journal.last))
    await server.serve(stop)


def _credentials(directory: Path, address: str, insecure: bool) -> grpc.ServerCredentials | None:
    if insecure:
        check_loopback(address)
        return None
    if not (directory / "server.pem").exists():
        raise UserError(
            f"There is no {directory / 'server.pem'}. Make the server's certificate with `polytempo certs {directory} "
            "--host NAME`, or serve plaintext on loopback with --insecure."
        )
    return server_credentials(directory)
