"""``polytempo new``: a small project to begin with."""

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from polytempo.core.disk.new_directory import new_directory
from polytempo_client.disk.files import write_bytes

SUFFIX = ".template"


def new(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="the directory to make, new or empty")],
) -> None:
    """Make a small project: a method and a model of your own, an experiment with both, a test."""
    templates = files("polytempo.cli") / "project"
    names = []
    with new_directory(directory) as making:
        for template in sorted(templates.iterdir(), key=lambda path: path.name):
            if template.name.endswith(SUFFIX):
                names.append(template.name.removesuffix(SUFFIX))
                write_bytes(making / names[-1], template.read_bytes())
    print(f"wrote {directory}: {', '.join(names)}")
    print(f"Go on with: cd {directory} && pytest")
