"""``polytempo devices``: the devices of a service's clients, as measured."""

from pathlib import Path
from typing import Annotated

import typer

from polytempo.cli.options import AllowImport
from polytempo.serve.journal.replay import newest
from polytempo.serve.process.measuring import device_file_text


def devices(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="the service's directory, or its journal's; it may be running")
    ],
    allow_import: AllowImport = [],  # noqa: B006
) -> None:
    """Print a device file with every client's speed, bandwidth and availability as a service has measured them."""
    service = newest(directory, allow_import).service
    print(device_file_text(service.members, service.now), end="")
