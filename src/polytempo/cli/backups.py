"""``polytempo backup`` and ``polytempo restore``: a service's directory, copied while it runs, and made again."""

import json
from pathlib import Path
from typing import Annotated

import typer

from polytempo.cli.options import AcceptVersion, Json, LeaveOut, LoseTail
from polytempo.serve.journal.continuing import Consent
from polytempo.serve.process.backup import back_up
from polytempo.serve.process.backup import restore as restore_backup


def backup(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="the service's directory; it may be running")],
    to: Annotated[Path, typer.Argument(metavar="BACKUP", help="the directory to write; it must not exist or be empty")],
    as_json: Json = False,
) -> None:
    """Copy a service while it runs: its journal up to one event, who may talk to it, its settings; no key, no token."""
    manifest = back_up(directory, to)
    if as_json:
        print(json.dumps({"event": manifest.event, "files": len(manifest.sha256)}))
        return
    print(f"wrote {to}: the service after event {manifest.event:,}")
    print("Keys and tokens (*.key, *.token) are not in it: keep copies of them apart, where only you can read them.")


def restore(
    copy: Annotated[Path, typer.Argument(metavar="BACKUP", help="what `polytempo backup` wrote")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="the service's directory; it must have no journal")],
    leave_out: LeaveOut = [],  # noqa: B006
    accept_version: AcceptVersion = False,
    lose_tail: LoseTail = False,
    as_json: Json = False,
) -> None:
    """Make a service from a backup. Clients go on by themselves; tasks that they got after the backup are void."""
    restored = restore_backup(copy, directory, Consent(lose_tail, accept_version, tuple(leave_out)))
    if as_json:
        print(json.dumps({"event": restored.event, "digest": restored.digest, "kept": restored.kept}))
        return
    print(f"restored {directory} to event {restored.event:,} of {restored.manifest.made:%Y-%m-%d %H:%M} UTC")
    print(f"digest {restored.digest}")
    for name in restored.kept:
        print(f"{directory / name} was there and stays")
    if "access.json" in restored.manifest.sha256 and "access.json" not in restored.kept:
        print(f"{directory / 'access.json'} is as old as the backup: revoke again what was revoked since.")
    print("Next: put server.pem and server.key there if they are not, and start `polytempo serve` with what it had")
    print("(and its --listen, --admin and --mtls, which are not in a backup):")
    print(f"  {json.dumps(restored.manifest.settings)}")
