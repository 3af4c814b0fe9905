"""What lies in the run files of W&B's offline mode."""

import json
from pathlib import Path
from typing import Any

from polytempo.track.wandb_files import records


def history(directory: Path) -> list[dict[str, Any]]:
    """The logged rows of all run files below a directory, in the order of their steps."""
    rows = []
    for path in sorted(directory.rglob("*.wandb")):
        for record in records(path):
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
                rows.append({**row, "_step": record.history.step.num})
    return sorted(rows, key=lambda row: row["_step"])


def facts(directory: Path, kind: str) -> list[Any]:
    """All records of a kind: run, config, summary, exit."""
    found = [record for path in sorted(directory.rglob("*.wandb")) for record in records(path)]
    return [getattr(record, kind) for record in found if record.WhichOneof("record_type") == kind]
