"""``polytempo erase``: a client leaves nothing behind but what models have learnt from it."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from polytempo.cli.options import AllowImport, Json
from polytempo.serve.process.erasing import erase as erase_client


def erase(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="the service's directory; it must be stopped")],
    client: Annotated[int, typer.Argument(help="number of the client", min=0)],
    allow_import: AllowImport = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Remove a client's updates, answers, figures and token from a stopped service; what models have learnt stays."""
    done = erase_client(directory, client, allow_import)
    if as_json:
        print(json.dumps(asdict(done)))
        return
    if done.was_done:
        print(f"client {client} was erased before, as event {done.event:,}; looked through the files once more")
    else:
        print(f"erased client {client} from {directory}, as event {done.event:,}")
    state = ", but for your strategy's state," if done.may_remember else ""
    print(f"The journal, its snapshots and later backups{state} hold no update, answer or figure of it.")
    print(
        f"Its token is revoked. It can come back as a newcomer, with a new code: polytempo codes {directory} {client}"
    )
    print("What remains:")
    if done.may_remember:
        print("  the state  of your strategy may still hold its updates and figures: the class has no forget(client).")
    print("  models     what they have learnt from it cannot be taken out. Begin a new service to be rid of that.")
    print("  backups    those made before still hold it: delete them, or erase again after a restore.")
    print("  logs       name it by its number. Splits and merges of clusters do so, too.")
    print("  the disk   may hold deleted blocks until they are written anew.")
    print(f"  a record   in the journal: client {client}, event {done.event:,}, and the time.")
