"""``polytempo certs`` and ``polytempo tokens``: who may talk to the server, and how clients know it."""

from pathlib import Path
from typing import Annotated

import typer

from polytempo.core.errors import UserError
from polytempo.serve.access import ROSTER, make_tokens, revoke_token
from polytempo.serve.certs import make_certs


def certs(
    directory: Annotated[Path, typer.Argument(help="the server's directory for certificates and keys")],
    host: Annotated[
        list[str], typer.Option(help="a name or IP address by which clients reach the server; may be repeated")
    ] = [],  # noqa: B006
    days: Annotated[int, typer.Option(help="how long the server's certificate is valid")] = 365,
) -> None:
    """Make a development CA, if the directory has none, and a server certificate signed by it."""
    has_ca = (directory / "ca.pem").exists()
    make_certs(directory, host, days)
    if not has_ca:
        print(f"wrote {directory / 'ca.pem'} and {directory / 'ca.key'}: a new CA")
    print(f"wrote {directory / 'server.pem'} and {directory / 'server.key'}: the server's certificate")
    print("Next: give ca.pem to every client. ca.key stays here and goes to nobody; the server needs only server.*.")


def tokens(
    directory: Annotated[Path, typer.Argument(help="the server's directory for clients.json and the new tokens")],
    clients: Annotated[
        int | None, typer.Option(help="make tokens for clients 0 to N - 1, where they have none", metavar="N")
    ] = None,
    revoke: Annotated[int | None, typer.Option(help="make this client's token invalid", metavar="CLIENT")] = None,
) -> None:
    """Make the clients' tokens, or revoke one."""
    if clients is not None and revoke is None:
        _make(directory, clients)
    elif revoke is not None and clients is None:
        revoke_token(directory, revoke)
        print(f"removed client {revoke} from {directory / ROSTER}")
        print(f"Next: restart the server. `polytempo tokens {directory} --clients N` gives the client a new token.")
    else:
        raise UserError("Give either --clients N, to make tokens, or --revoke CLIENT, to make one invalid.")


def _make(directory: Path, clients: int) -> None:
    made = make_tokens(directory, clients)
    if not made:
        print(f"nothing to do: each of the {clients} clients has a token in {directory / ROSTER}")
        return
    print(f"wrote {directory / ROSTER}: hashes only, for the server")
    for path in made:
        print(f"wrote {path}")
    print("Next: give each client ca.pem and its own token file, over a channel you trust, and no other file.")
