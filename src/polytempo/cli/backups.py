"""``polytempo backup`` and ``polytempo restore``: a service's directory, copied while it runs, and made again."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from polytempo.cli.options import (
    GIVEN_OTHERWISE,
    AcceptVersion,
    AllowImport,
    Json,
    LeaveOut,
    LoseTail,
    parse_assignments,
)
from polytempo.core.errors import UserError
from polytempo.core.registry import quoted
from polytempo.serve.journal.continuing import Consent
from polytempo.serve.journal.leaving_out import parse_events
from polytempo.serve.journal.settings import ServiceSettings
from polytempo.serve.paths import ACCESS, BACKUP_PUBLIC_KEY, OPERATIONS
from polytempo.serve.process.backup import back_up
from polytempo.serve.process.backup import restore as restore_backup


def backup(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="the service's directory; it may be running")],
    to: Annotated[Path, typer.Argument(metavar="BACKUP", help="the directory to write; it must not exist or be empty")],
    as_json: Json = False,
) -> None:
    """Copy a service while it runs: its journal up to one event, who may talk to it, its settings; no key, no token."""
    if to.resolve().is_relative_to(directory.resolve()):
        raise UserError(
            f"{to} lies in {directory}, the directory of the service itself. Nothing was written. Choose a directory "
            "elsewhere, best on another disk: what harms the service must not harm its backups."
        )
    made = back_up(directory, to)
    event, files = made.manifest.event, len(made.manifest.sha256)
    if as_json:
        print(json.dumps({"event": event, "files": files, "signed": made.signed}))
        return
    print(f"wrote {to}: the service after event {event:,}, {'signed' if made.signed else 'not signed'}")
    print("Keys and tokens (*.key, *.token) are not in it: keep copies of them apart, where only you can read them.")
    if made.signed:
        print(f"To restore it you need {directory / BACKUP_PUBLIC_KEY}: keep a copy apart from the backups.")
    else:
        print(f"`polytempo certs {directory} --backup` makes a key that signs backups from then on.")
        print("Without a signature nobody can tell whether it was changed: `restore` takes it with --unsigned only.")


def restore(
    copy: Annotated[Path, typer.Argument(metavar="BACKUP", help="what `polytempo backup` wrote")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="the service's directory; it must have no journal")],
    leave_out: LeaveOut = [],  # noqa: B006
    accept_version: AcceptVersion = False,
    lose_tail: LoseTail = False,
    key: Annotated[
        Path | None, typer.Option(help="the public key that the backup is signed with (default DIR/backup.pem)")
    ] = None,
    unsigned: Annotated[
        bool, typer.Option("--unsigned", help="do not check the signature: whoever wrote the backup is trusted")
    ] = False,
    allow_import: AllowImport = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Make a service from a backup. Clients go on by themselves; tasks that they got after the backup are void."""
    if key is not None and unsigned:
        raise UserError("Give either --key FILE, to check the backup's signature, or --unsigned, not to check it.")
    consent = Consent(lose_tail, accept_version, parse_events(leave_out), unproven=True)
    restored = restore_backup(copy, directory, consent, allow_import, key, unsigned)
    if as_json:
        print(json.dumps({"event": restored.event, "digest": restored.digest, "kept": restored.kept}))
        return
    print(f"restored {directory} to event {restored.event:,} of {restored.manifest.made:%Y-%m-%d %H:%M} UTC")
    print(f"digest {restored.digest}")
    for name in restored.kept:
        print(f"{directory / name} was there and stays")
    if ACCESS in restored.manifest.sha256 and ACCESS not in restored.kept:
        print(f"{directory / ACCESS} is as old as the backup: revoke again what was revoked since.")
    if unsigned and OPERATIONS in restored.manifest.sha256 and OPERATIONS not in restored.kept:
        print(f"{directory / OPERATIONS} is that of a backup that was not checked: read it before you start.")
    print(
        "Next: put server.pem, server.key and backup.key there if they are not, and start it with this command, and its"
    )
    print("--listen, --admin and --mtls, which are not in a backup:")
    print(f"  {serve_command(directory, restored.settings)}")


def _word(value: Any) -> str:
    """A setting's value as an option takes it."""
    if value is None:
        return "none"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def serve_command(directory: Path, settings: ServiceSettings) -> str:
    """The command that starts the service in a directory. What has its default is left out."""
    words = ["polytempo", "serve", settings.strategy, "--dir", str(directory)]
    for name, value in settings.lasting().items():
        field = ServiceSettings.model_fields[name]
        if name not in GIVEN_OTHERWISE and _word(value) != _word(field.default):
            words += [f"--{name.replace('_', '-')}", _word(value)]
    for name, value in settings.parameters.items():
        plain = isinstance(value, str) and parse_assignments([f"it={value}"]) == {"it": value}
        words += ["--set", f"{name}={value if plain else json.dumps(value)}"]
    return " ".join(map(quoted, words))
