"""``polytempo export``: the models of a service, for PyTorch."""

import json
from pathlib import Path
from typing import Annotated

import typer

from polytempo.cli.options import AllowImport, Json
from polytempo.report.facts.numbers import counted
from polytempo.serve.process.exporting import export as export_models


def export(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="the service's directory; it may be running")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="the directory to write; it must not exist or be empty")],
    allow_import: AllowImport = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Write the model that each client is served, and a newcomer's, as safetensors that plain PyTorch loads."""
    index = export_models(directory, out, allow_import)
    if as_json:
        print(json.dumps(index))
        return
    files = len(index["models"])
    whose = f"the models of {counted(files - 1, 'client')} and of a newcomer"
    print(f"wrote {out}: {counted(files, 'file')}, {whose}, of {index['strategy']} after event {index['event']:,}")
    path = out / index["models"][0]["file"]
    strict = ", strict=False" if index["frozen"] else ""
    print(f'Load one with module.load_state_dict(safetensors.torch.load_file("{path}"){strict}).')
    if index["frozen"]:
        print(
            f"Frozen parts, fingerprint {index['frozen'][:12]}, are in no file: make the module with its own weights."
        )
