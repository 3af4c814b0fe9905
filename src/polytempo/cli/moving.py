"""``polytempo move``: a service from one store to another."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from polytempo.cli.options import AllowImport, Json
from polytempo.serve.process.moving import move as move_service
from polytempo.serve.process.moving import shown

WHERE = "a service's directory, or postgresql://USER@HOST/DATABASE?schema=NAME"


def move(
    source: Annotated[str, typer.Argument(metavar="FROM", help=f"{WHERE}; it must be stopped")],
    target: Annotated[str, typer.Argument(metavar="TO", help=f"{WHERE}; it must hold none")],
    allow_import: AllowImport = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Copy a stopped service from its directory to a database, or back, and verify its digest. It goes on there."""
    moved = move_service(source, target, allow_import)
    if as_json:
        print(json.dumps(asdict(moved)))
        return
    print(f"moved the service to {shown(target)}: event {moved.event:,}, digest {moved.digest}")
    if moved.noted:
        print(f"{source} says so from now on: start the service with the same --dir as before.")
        print(f"Its files in {source}/journal are not used any more. Delete them when you have a backup.")
    else:
        print("Keys and certificates were not moved. What is left where it was does not start any more.")
