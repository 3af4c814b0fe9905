"""``polytempo certs``, ``tokens``, ``codes``, ``enrol``, ``release``: who may talk to the server, and how clients know
it."""

import time
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from polytempo.core.errors import UserError
from polytempo.serve.access.certs import make_certs, make_client_certificate
from polytempo.serve.access.enrolment import CODE_HOURS, make_code
from polytempo.serve.access.live import release as release_client
from polytempo.serve.access.roster import Pass, Role, Roster, client_name, utc_now
from polytempo.serve.access.signing import make_backup_key
from polytempo.serve.access.tokens import make_operator, make_tokens, revoke_client, revoke_operator
from polytempo.serve.paths import (
    ACCESS,
    BACKUP_KEY,
    BACKUP_PUBLIC_KEY,
    CA_CERTIFICATE,
    CA_KEY,
    SERVER_CERTIFICATE,
    SERVER_KEY,
)
from polytempo_client.session.enrolment import enrol_client
from polytempo_client.session.tls import pair_of

Directory = Annotated[Path, typer.Argument(help="the service's directory")]
Days = Annotated[float | None, typer.Option(help="how long the token is valid (default: for ever)")]


def certs(
    directory: Annotated[Path, typer.Argument(help="the server's directory for certificates and keys")],
    host: Annotated[
        list[str], typer.Option(help="a name or IP address by which clients reach the server; may be repeated")
    ] = [],  # noqa: B006
    client: Annotated[
        list[int], typer.Option(help="make this client's certificate instead, for --mtls; may be repeated", min=0)
    ] = [],  # noqa: B006
    backup: Annotated[
        bool, typer.Option("--backup", help="make only the key that signs backups, if the directory has none")
    ] = False,
    days: Annotated[int, typer.Option(help="how long the certificate is valid")] = 365,
) -> None:
    """Make a CA and a key that signs backups, if the directory has none, and a server certificate signed by the CA; or
    clients'."""
    if bool(client) + bool(host) + backup > 1:
        raise UserError(
            "Give one of --host, for the server's certificate, --client, for clients', or --backup, for the key that "
            "signs backups."
        )
    if backup:
        _make_backup_key(directory)
        return
    if client:
        for number in client:
            make_client_certificate(directory, number, days)
            print(f"wrote {directory / f'client-{number}.pem'} and {directory / f'client-{number}.key'}")
        print("Next: give each client ca.pem and its own pair, over a channel you trust, and no other file.")
        return
    has_ca = (directory / CA_CERTIFICATE).exists()
    names = make_certs(directory, host, days)
    if not has_ca:
        print(f"wrote {directory / CA_CERTIFICATE} and {directory / CA_KEY}: a new CA")
    print(f"wrote {directory / SERVER_CERTIFICATE} and {directory / SERVER_KEY}: the server is {', '.join(names)}")
    _make_backup_key(directory)
    print("Next: give ca.pem to every client. Keep ca.key where only you can read it; the server does not need it.")


def _make_backup_key(directory: Path) -> None:
    key, public = directory / BACKUP_KEY, directory / BACKUP_PUBLIC_KEY
    if make_backup_key(directory):
        print(f"wrote {key}, which signs backups, and {public}, which they are checked with:")
        print("keep copies of both apart from the backups, backup.key where only you can read it.")
    else:
        print(f"{key} and {public} were there and stay")


def tokens(
    directory: Annotated[Path, typer.Argument(help="the server's directory for access.json and the new tokens")],
    clients: Annotated[
        int | None, typer.Option(help="make tokens for clients 0 to N - 1, where they have none", metavar="N")
    ] = None,
    operator: Annotated[str | None, typer.Option(help="make a token for this operator", metavar="NAME")] = None,
    role: Annotated[
        Literal["admin", "viewer"] | None,
        typer.Option(help="of the operator: may act, or look only (default: as before, or viewer)"),
    ] = None,
    revoke: Annotated[int | None, typer.Option(help="make this client's token invalid", metavar="CLIENT")] = None,
    revoke_operator_: Annotated[
        str | None, typer.Option("--revoke-operator", help="make this operator's token invalid", metavar="NAME")
    ] = None,
    days: Days = None,
) -> None:
    """Show who may talk to a server, make tokens of clients or operators, or revoke one: a server that runs takes it at
    once."""
    given = sum(option is not None for option in (clients, operator, revoke, revoke_operator_))
    if given > 1:
        raise UserError(
            "Give one of --clients N or --operator NAME, to make tokens, --revoke CLIENT or --revoke-operator NAME, "
            "to make one invalid; or none, to see who has one."
        )
    if role is not None and operator is None:
        raise UserError("--role belongs to --operator NAME: give both.")
    if days is not None and clients is None and operator is None:
        raise UserError("--days belongs to --clients N or --operator NAME: give one of them.")
    if not given:
        _show(Roster.read(directory / ACCESS))
    elif clients is not None:
        _make(directory, clients, days)
    elif operator is not None:
        _make_operator(directory, operator, role, days)
    elif revoke is not None:
        revoke_client(directory, revoke)
        print(f"removed client {revoke} from {directory / ACCESS}: a server that runs there ends its session at once")
        print(f"Next: `polytempo codes {directory} {revoke}` lets the client enrol anew.")
    elif revoke_operator_ is not None:
        revoke_operator(directory, revoke_operator_)
        print(f"removed operator {revoke_operator_} from {directory / ACCESS}")


def codes(
    directory: Directory,
    clients: Annotated[list[int], typer.Argument(help="numbers of clients", min=0)],
    hours: Annotated[float, typer.Option(help="how long the code is valid")] = CODE_HOURS,
    days: Days = None,
) -> None:
    """Make one-time codes with which clients get their tokens: `polytempo enrol`."""
    for client in clients:
        print(f"client {client}: {make_code(directory, client, hours, days)}")
    quarantined = Roster.read(directory / ACCESS).quarantined
    for client in [client for client in clients if client in quarantined]:
        print(f"client {client} is in quarantine, and ignored until `polytempo release {directory} {client}`")
    print(
        f"Next: give each client its code and ca.pem. It runs `polytempo enrol HOST:PORT --ca ca.pem` "
        f"within {hours:g} h; the code works once."
    )


def enrol(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="where the server listens")],
    code: Annotated[str, typer.Option(help="the one-time code", prompt=True, hide_input=True)],
    ca: Annotated[Path | None, typer.Option(help="the file with the certificate of the server's CA")] = None,
    cert: Annotated[Path | None, typer.Option(help="this client's certificate, where the server asks for it")] = None,
    key: Annotated[Path | None, typer.Option(help="the certificate's key")] = None,
    out: Annotated[Path, typer.Option(help="where the token goes")] = Path("client.token"),
    insecure: Annotated[bool, typer.Option("--insecure", help="plaintext instead of TLS; only on loopback")] = False,
) -> None:
    """Turn a one-time code into this client's token."""
    done = enrol_client(address, code, out, ca, pair_of(cert, key), insecure=insecure)
    until = "" if done.expires is None else f", valid until {done.expires:%Y-%m-%d %H:%M} UTC"
    print(f"this is client {done.client}; wrote {out}{until}")
    print(f"Next: `polytempo join {address} --token {out}`, with the same --ca (and --cert, --key) and your data.")


def release(directory: Directory, client: Annotated[int, typer.Argument(help="number of the client", min=0)]) -> None:
    """Let a client out of quarantine: a running server accepts it again at once."""
    release_client(directory, client)
    print(f"client {client} is out of quarantine")


def _show(roster: Roster) -> None:
    table = Table("who", "may", "until", "note", box=SIMPLE_HEAD)
    for client, entry in roster.clients.items():
        held = roster.quarantined.get(client)
        table.add_row(
            client_name(client), "train", _until(entry), "" if held is None else f"quarantined: {held.reason}"
        )
    for client in sorted(roster.quarantined.keys() - roster.clients.keys()):
        table.add_row(client_name(client), "nothing", "", f"quarantined: {roster.quarantined[client].reason}")
    for name, operator in roster.operators.items():
        table.add_row(f"operator {name}", "act" if operator.role == "admin" else "look", _until(operator), "")
    for code in sorted(roster.codes.values(), key=lambda code: code.client):
        if code.expires > utc_now():
            table.add_row(client_name(code.client), "enrol", f"{code.expires:%Y-%m-%d %H:%M} UTC", "an open code")
    Console().print(table)


def _until(entry: Pass) -> str:
    if entry.expires is None:
        return "for ever"
    return f"{entry.expires:%Y-%m-%d %H:%M} UTC{'' if entry.is_valid(time.time()) else ' (expired)'}"


def _make(directory: Path, clients: int, days: float | None) -> None:
    made = make_tokens(directory, clients, days)
    if not made:
        whose = "the client" if clients == 1 else f"each of the {clients} clients"
        print(f"nothing to do: {whose} has a token in {directory / ACCESS}")
        return
    print(f"wrote {directory / ACCESS}: hashes only, for the server")
    for path in made:
        print(f"wrote {path}")
    print("Next: give each client ca.pem and its own token file, over a channel you trust, and no other file.")


def _make_operator(directory: Path, name: str, role: Role | None, days: float | None) -> None:
    access = directory / ACCESS
    had_one = access.exists() and name in Roster.read(access).operators
    path = make_operator(directory, name, role, days)
    earlier = f"; one that {name} had before counts no more" if had_one else ""
    print(f"wrote {path}: a token to log in as {Roster.read(access).operators[name].role}{earlier}")
