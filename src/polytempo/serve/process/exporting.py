"""The models that a service serves, as files that plain PyTorch loads.

client-N.safetensors        what client N would be served now, its tensors under the names of the model
newcomer.safetensors        what a client would be served that nobody has met
index.json                  for each file: the branch and its version; the event; the version of Polytempo; the
                            fingerprint of the model's frozen parts, which are in no file"""

import json
from collections.abc import Collection
from importlib import metadata
from pathlib import Path
from typing import Any

from torch import Tensor

from polytempo.core.branch import branches
from polytempo.core.disk.files import same_file, write_whole
from polytempo.core.disk.new_directory import new_directory
from polytempo.core.disk.tensor_file import write_tensors
from polytempo.core.model.state_dicts import with_batch_counts
from polytempo.serve.access.roster import client_name
from polytempo.serve.journal.replay import newest
from polytempo.serve.state.service import Service
from polytempo_client.disk.files import write_bytes
from polytempo_client.model.schema import Schema

INDEX = "index.json"
NEWCOMER = "newcomer"


def export(directory: Path, out: Path, allowed: Collection[str] = ()) -> dict[str, Any]:
    """Write the models of the service in this directory, which may be running, after its last event. ``out`` appears
    when all of them are there. ``allowed`` is that of ``settings_of``. Returns the index."""
    replayed = newest(directory, allowed)
    with new_directory(out) as making:
        index = {
            "polytempo": metadata.version("polytempo"),
            "strategy": replayed.settings.strategy,
            "event": replayed.event,
            "frozen": replayed.service.schema.frozen,
            "models": _write_models(replayed.service, making),
        }
        write_bytes(making / INDEX, json.dumps(index, indent=1).encode() + b"\n", 0o600)
    return index


def _write_models(service: Service, making: Path) -> list[dict[str, Any]]:
    """One row of the index for each file. Clients on the same branch share one file under several names."""
    shared = {id(branch.weights): branch for _, branch in branches(service.strategy.save_state())}
    written: dict[int, Path] = {}
    rows = []
    for client in [*sorted(service.members), None]:
        weights = service.first_model() if client is None else service.strategy.model_for(client)
        path = making / f"{NEWCOMER if client is None else client_name(client)}.safetensors"
        branch = shared.get(id(weights))
        if branch is not None and id(weights) in written:
            same_file(written[id(weights)], path, 0o600)
        else:
            _write_model(path, service.schema, weights)
            written[id(weights)] = path
        number = None if client is None else service.strategy.cluster_of(client)
        version = None if branch is None else branch.version
        rows.append({"client": client, "file": path.name, "branch": number, "version": version})
    return rows


def _write_model(path: Path, schema: Schema, weights: Tensor) -> None:
    write_whole(path, lambda temporary: write_tensors(temporary, state_dict(schema, weights)), 0o600)


def state_dict(schema: Schema, weights: Tensor) -> dict[str, Tensor]:
    """The tensors of a model under their names, so that ``load_state_dict`` misses nothing."""
    return with_batch_counts(schema.views(weights))
