"""``polytempo serve`` and ``polytempo join``: a strategy on the wall clock, and a client of it."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from polytempo.cli.options import AcceptVersion, LeaveOut, LoseTail, Set, parse_assignments, with_options
from polytempo.core.errors import UserError
from polytempo.core.model.encodings import Encodings
from polytempo.serve.addresses import checked_address
from polytempo.serve.client.client import Client
from polytempo.serve.client.join import join as join_service
from polytempo.serve.client.own_data import JoinSettings, make_join_settings
from polytempo.serve.client.tls import pair_of
from polytempo.serve.journal.continuing import Consent
from polytempo.serve.journal.leaving_out import parse_events
from polytempo.serve.journal.settings import ServiceSettings, make_settings
from polytempo.serve.logs import log_to
from polytempo.serve.process.options import OPEN_TO_STRANGERS, Endpoints, Listening, ServeOptions
from polytempo.serve.process.running import run_service

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
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="where the server listens")],
    token: Annotated[Path, typer.Option(help="the file with this client's token")],
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
    certificate, encodings = pair_of(cert, key), Encodings(upload, download)

    def connect() -> Client:
        return Client(address, token, ca, certificate=certificate, insecure=insecure, keep=keep, encodings=encodings)

    log_to(level=log_level)
    checked_address(address)
    with _stopped_by_signals():
        join_service(connect, make_join_settings(**settings), updates)


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """SIGTERM is as good as Ctrl-C, and both are a good end."""
    # A shell lets its background jobs ignore SIGINT; who sends it to us means us.
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except KeyboardInterrupt:
        print("polytempo: stopped.", file=sys.stderr)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
