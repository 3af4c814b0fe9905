"""``polytempo serve`` and ``polytempo join``: a strategy on the wall clock, and a client of it."""

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from polytempo.cli.options import AcceptVersion, LeaveOut, LoseTail, Set, parse_assignments, with_options
from polytempo.core.errors import UserError
from polytempo.serve.client.join import join as join_service
from polytempo.serve.client.own_data import JoinSettings, make_join_settings
from polytempo.serve.journal.continuing import Consent
from polytempo.serve.journal.leaving_out import parse_events
from polytempo.serve.journal.settings import ServiceSettings, make_settings
from polytempo.serve.process.options import OPEN_TO_STRANGERS, Endpoints, Listening, ServeOptions
from polytempo.serve.process.running import run_service
from polytempo_client.client import Client
from polytempo_client.leaving import stopped_by_signals
from polytempo_client.logs import log_to
from polytempo_client.model.encodings import Encodings
from polytempo_client.session.addresses import checked_address, servers_of
from polytempo_client.session.tls import pair_of

LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"], typer.Option(help="what is logged on stderr, as JSON lines")
]


@with_options(ServiceSettings)
def serve(
    strategy: Annotated[str, typer.Argument(help="a strategy's name, or your own as file.py:Class")],
    set_: Set = [],  # noqa: B006
    directory: Annotated[
        Path, typer.Option("--dir", help="the service's directory: tokens, certificates, journal")
    ] = Path("federation"),
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="where clients reach it")] = "127.0.0.1:7733",
    insecure: Annotated[bool, typer.Option("--insecure", help="plaintext instead of TLS; only on loopback")] = False,
    mtls: Annotated[
        bool, typer.Option("--mtls", help="clients have to show certificates of their own (polytempo certs --client)")
    ] = False,
    admin: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="where operators reach its page and metrics (default: not)")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="keep the service in this PostgreSQL database, which several servers may share"
        ),
    ] = None,
    leave_out: LeaveOut = [],  # noqa: B006
    accept_version: AcceptVersion = False,
    lose_tail: LoseTail = False,
    log_level: LogLevel = "info",
    *,
    settings: dict[str, Any],
) -> None:
    """Serve one strategy until Ctrl-C or SIGTERM; started again on the same directory, it goes on."""
    service = make_settings(strategy=strategy, parameters=parse_assignments(set_), **settings)

    def on_listening(at: Listening) -> None:
        how = "TLS with clients' certificates" if at.mutual else "TLS" if at.secure else "plaintext"
        since = f"goes on from event {at.event:,}" if at.event else "begins anew"
        since = f"stands by, at event {at.event:,}, until it leads" if at.stands_by else since
        print(f"{strategy} on {at.address} ({how}), {at.parameters:,} parameters: {since}", flush=True)
        print(f"defences: {at.defences}", flush=True)
        if at.admin is not None:
            print(f"operators: {'https' if at.secure else 'http'}://{at.admin}/", flush=True)

        if endpoints.open_to_strangers:
            print(f"polytempo: warning: {OPEN_TO_STRANGERS}", file=sys.stderr, flush=True)

    operators = None if admin is None else checked_address(admin)
    endpoints = Endpoints(checked_address(listen), insecure, mtls, operators)
    consent = Consent(lose_tail, accept_version, parse_events(leave_out))
    run_service(ServeOptions(directory, service, endpoints, consent, log_level, store), on_listening)


@with_options(JoinSettings, but=())
def join(
    token: Annotated[Path, typer.Option(help="the file with this client's token")],
    address: Annotated[str | None, typer.Argument(metavar="[HOST:PORT]", help="where the server listens")] = None,
    servers: Annotated[
        str | None, typer.Option(metavar="HOST:PORT,...", help="several addresses of one service")
    ] = None,
    ca: Annotated[Path | None, typer.Option(help="the file with the certificate of the server's CA")] = None,
    cert: Annotated[Path | None, typer.Option(help="this client's certificate, where the server asks for it")] = None,
    key: Annotated[Path | None, typer.Option(help="the certificate's key")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="plaintext instead of TLS; only on loopback")] = False,
    updates: Annotated[int | None, typer.Option(min=1, help="leave after so many updates (default: never)")] = None,
    keep: Annotated[
        Path | None, typer.Option(help="keep the open task in this file, and go on with it when started again")
    ] = None,
    upload: Annotated[str, typer.Option(help="how updates are encoded: fp16 or topk:SHARE (default: float32)")] = "",
    download: Annotated[str, typer.Option(help="how models are, beside --upload: fp16 (default: float32)")] = "",
    log_level: LogLevel = "info",
    *,
    settings: dict[str, Any],
) -> None:
    """Take part in a federation with data of one's own, until Ctrl-C or SIGTERM."""
    if ca is None and not insecure:
        raise UserError("Give --ca, the ca.pem of whoever runs the server; or --insecure for plaintext on loopback.")
    if (address is None) == (servers is None):
        raise UserError("Give the address of the server, HOST:PORT, or --servers with several of them.")
    at, certificate, encodings = servers_of(address or servers or ""), pair_of(cert, key), Encodings(upload, download)

    def connect() -> Client:
        return Client(at, token, ca, certificate=certificate, insecure=insecure, keep=keep, encodings=encodings)

    log_to(level=log_level)
    with stopped_by_signals("polytempo"):
        join_service(connect, make_join_settings(**settings), updates)
