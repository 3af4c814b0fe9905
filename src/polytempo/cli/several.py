"""``polytempo hand-over`` and ``polytempo settings``: for a service that several servers share, and any other."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from polytempo.cli.options import Json
from polytempo.core.errors import UserError
from polytempo.serve.paths import OPERATIONS
from polytempo.serve.process.backup import put_document
from polytempo.serve.process.handing_over import hand_over as hand_over_lead
from polytempo.serve.server.operations import parse_operations
from polytempo.serve.storage.documents import documents_of
from polytempo.world.tables import TOML_BYTES
from polytempo_client.disk.reading import read_given

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="the directory of one of the service's servers")]


def hand_over(
    directory: Directory,
    to: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="the server that is to lead (default: whichever is ready)")
    ] = None,
    as_json: Json = False,
) -> None:
    """Let another server lead: the one that leads answers what has arrived, and stands by from then on."""
    done = hand_over_lead(directory, to)
    if as_json:
        print(json.dumps(asdict(done)))
    else:
        print(f"{done.leader} leads now, and {done.before} stands by: epoch {done.epoch}, after {done.seconds:.1f} s")


def settings(
    directory: Directory,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="a service.toml to put in place of the service's")
    ] = None,
) -> None:
    """Print the service.toml of a service, wherever it is kept, or put a file in its place."""
    documents = documents_of(directory)
    if file is None:
        try:
            print(documents.read(OPERATIONS).decode(), end="")
        except FileNotFoundError:
            print(f"# There is no {documents.title(OPERATIONS)}: everything has its default.")
        except OSError as error:
            raise UserError(f"Cannot read {documents.title(OPERATIONS)}: {error.strerror}.") from None
        return
    try:
        content = read_given(file, TOML_BYTES)
    except OSError as error:
        raise UserError(f"Cannot read {file}: {error.strerror}. Give a service.toml.") from None
    parse_operations(content, str(file))
    put_document(directory, OPERATIONS, content)
    print(f"wrote {documents.title(OPERATIONS)}")
    if documents.is_shared:
        print("Every server of the service takes it within a second.")
    else:
        print("A server that runs takes it at SIGHUP (systemctl reload polytempo).")
